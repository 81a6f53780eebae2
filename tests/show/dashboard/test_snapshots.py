"""The newest snapshot: who asks, how often, and what happens without an answer."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgspec
import pytest

from rhymed.core.config import Config
from rhymed.core.messages import Queues
from rhymed.core.run.layout import layout_of
from rhymed.core.secret import redacted
from rhymed.show.dashboard import snapshots
from rhymed.show.dashboard.data.steps import joined
from rhymed.show.dashboard.snapshots import LiveRun, SnapshotClient, SnapshotPipe, plain
from tests.show.dashboard.rows import NOW, queues, span


async def test_many_at_a_time_are_one_question() -> None:
    asked, answered = [], asyncio.Event()

    async def ask() -> Queues | None:
        asked.append(1)
        await answered.wait()
        return queues()

    one = LiveRun(ask)
    many = [asyncio.ensure_future(one.queues()) for _ in range(9)]
    await asyncio.sleep(0)
    many.pop().cancel()  # who goes away does not take the answer along
    answered.set()
    assert all(found == queues() for found in await asyncio.gather(*many))
    assert len(asked) == 1
    assert one.was_alive
    assert not one.is_over


async def test_no_request_waits_for_a_broker_that_was_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "GONE_S", 0.0)
    answers: list[Queues | None] = [None]

    async def ask() -> Queues | None:
        return answers[-1]

    one = LiveRun(ask)
    assert await one.queues() is None
    assert one.is_over  # it never was alive
    answers.append(queues())
    async with asyncio.timeout(60):
        while await one.queues() is None:
            await asyncio.sleep(0)


async def test_a_run_whose_sockets_are_taken_away_is_over_at_once(tmp_path: Path) -> None:
    async def ask() -> Queues | None:
        return queues()

    sockets = tmp_path / "sockets"
    sockets.mkdir()
    where = layout_of(Config.model_validate({"net": {"broker": f"ipc://{sockets}/broker"}}))
    one = LiveRun(ask, SnapshotClient(where).is_gone)
    assert await one.queues() == queues()
    assert not one.is_over  # the broker may come again
    sockets.rmdir()
    assert one.is_over


async def test_no_request_waits_for_a_broker_that_has_gone() -> None:
    asked = asyncio.Event()

    async def ask() -> Queues | None:
        asked.set()
        await asyncio.Event().wait()
        return None

    one = LiveRun(ask)
    waiting = asyncio.ensure_future(one.queues())
    async with asyncio.timeout(60):
        await asked.wait()
        one.end()
        assert await waiting is None
        assert await one.queues() is None
    assert one.is_over


async def test_a_run_without_sockets_is_not_asked(tmp_path: Path) -> None:
    config = Config.model_validate({"run": {"name": "over", "folder": str(tmp_path)}})
    asked = SnapshotClient(layout_of(config))
    assert await asked() is None
    asked.close()


async def test_the_pipe_ends_with_the_broker() -> None:
    reader, sent = asyncio.StreamReader(), []
    pipe = SnapshotPipe(reader, type("Pipe", (), {"write": lambda self, data: sent.append(data)})())
    body = msgspec.msgpack.encode(queues())
    reader.feed_data(len(body).to_bytes(4, "big") + body)
    assert await pipe() == queues()
    reader.feed_eof()
    assert await pipe() is None
    assert pipe.gone.is_set()
    assert sent == [b"?\n", b"?\n"]


def test_json_has_what_the_wire_leaves_out() -> None:
    sent = json.loads(msgspec.json.encode(plain(queues())))
    assert set(sent) == set(Queues.__struct_fields__)
    assert sent["workers"][0]["holding"][0]["id"]["step"] == 2


def test_many_spans_are_joined_and_no_gap_is_closed() -> None:
    spans = [span(NOW + at, worker) for at in range(100) for worker in ("rollout-0", "rollout-1") if at != 50]
    assert joined(spans, most=1000) == spans
    few = joined(spans, most=20)
    assert len(few) < 30
    assert [one.t for one in few] == sorted(one.t for one in few)
    for worker in ("rollout-0", "rollout-1"):
        own = [one for one in few if one.worker == worker]
        assert sum(one.s for one in own) == 99.0
        assert sum(one.inside["decode"] for one in own) == 99 * 0.75
        assert {one.tokens_per_s for one in own} == {100.0}
        assert not any(one.t - one.s < NOW + 49.5 < one.t - 0.01 for one in own)


def test_secrets_of_a_configuration_are_not_shown() -> None:
    given = {"a": {"api_key": "x", "max_tokens": 3, "url": "https://u:p@h/x"}, "b": [{"password": "y"}], "token": ""}
    assert redacted(given) == {
        "a": {"api_key": "***", "max_tokens": 3, "url": "https://***@h/x"}, "b": [{"password": "***"}], "token": "",
    }  # fmt: skip
