"""The environment worker between a real store and a broker that only records messages, or is slow to answer."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rhymed.core import messages
from rhymed.core.config import Config
from rhymed.core.errors import EnvironmentDown, EnvironmentFailed, EnvironmentUnusable
from rhymed.core.messages import Answer, Turn
from rhymed.core.run.layout import layout_of
from rhymed_store.client import StoreClient
from rhymed_store.sessions import NewTurn, get_session, put_answer, put_turns
from rhymed_workers.environment.worker import Acting, EnvironmentWorker
from tests.workers.peers import RecordingBroker, at_work, ids, until

NAME = "environment-0"
ONE = ids()[0]
TOOLS = '''
def add(a: int) -> int:
    """Adds one.

    Args:
        a: Any.
    """
    return a + 1
'''


class SlowBroker(RecordingBroker):
    """Its answers to these messages come when `may` is set."""

    def __init__(self, address: str, kinds: tuple[type, ...]) -> None:
        super().__init__(address)
        self.kinds, self.may = kinds, asyncio.Event()

    async def _answer(self, peer: bytes, message: Any, frames: Any) -> messages.Message:
        answer = await super()._answer(peer, message, frames)
        if isinstance(message, self.kinds):
            await self.may.wait()
        return answer


@pytest.fixture
def config(config: Config, tmp_path: Path) -> Config:
    (tmp_path / "tools.py").write_text(TOOLS)
    tools = config.environment.model_copy(update={"tools": f"{tmp_path}/tools.py:add", "processes": 1})
    return config.model_copy(update={"environment": tools})


async def test_a_long_act_leaves_its_whole_patience_to_a_wait(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rhymed_workers.environment.worker.REST_S", 0.0)
    monkeypatch.setattr("rhymed_workers.environment.worker.PATIENCE_S", 0.2)
    made = messages.SampleInfo(id=ONE, prompt_length=1, length=1, finish_reason="stop", versions=[(0, 1)])

    class Long:
        acts = 0

        async def act(self, id: messages.SampleId) -> messages.SampleInfo | None:
            self.acts += 1
            if self.acts > 1:
                return made
            await asyncio.sleep(0.4)
            raise OSError(errno.EMFILE, "too many open files")

    worker = EnvironmentWorker(config, layout_of(config), NAME)
    acting = Acting(worker, Long(), 1)  # type: ignore[arg-type]
    assert await acting._when_possible(ONE) is made
    await worker.close()


@contextlib.asynccontextmanager
async def acting(config: Config, where: Any, broker: RecordingBroker) -> AsyncIterator[EnvironmentWorker]:
    worker = EnvironmentWorker(config, where, NAME)
    async with worker.running():
        await until(lambda: broker.all(messages.Join))
        yield worker


async def write(client: StoreClient, number: int, text: str) -> None:
    tokens = np.frombuffer(text.encode(), np.uint8).astype(np.uint32)
    turn = Turn(length=len(tokens), finish_reason="stop", versions=[(0, len(tokens))])
    await put_turns(client, [NewTurn(ONE, number, turn, tokens, np.full(len(tokens), -1.0, np.float32))])


CALL = f"<tool_call>{json.dumps({'name': 'add', 'arguments': {'a': 1}})}</tool_call>"


async def test_a_sample_is_answered_until_it_is_whole(config: Config, scene: Any) -> None:
    where, broker, _, client = scene
    async with acting(config, where, broker):
        assert broker.all(messages.Join)[0].role == "environment"
        await broker.ask(messages.Act(samples=[ONE]))
        await until(lambda: len(broker.all(messages.Answered)) == 1)
        await write(client, 0, CALL)
        await broker.ask(messages.Act(samples=[ONE]))
        await until(lambda: len(broker.all(messages.Answered)) == 2)
        await write(client, 1, "It is 2.")
        await broker.ask(messages.Act(samples=[ONE]))
        await until(lambda: broker.generated)
    info = broker.generated[ONE]
    assert info.turns == [len(CALL), len("\n\n2\n\n"), len("It is 2.")]
    (found,) = await client.get_samples([ONE])
    assert bytes(found.tokens.tolist()).decode() == f"{CALL}\n\n2\n\nIt is 2."


async def test_an_order_before_the_acknowledgement_is_not_lost(config: Config, scene: Any) -> None:
    """The broker has taken the report and given the sample out again; its answer to the report is late."""
    where, recording, _, client = scene
    recording.server.close()
    broker = SlowBroker(where.broker, (messages.Answered, messages.GiveBack))
    try:
        async with acting(config, where, broker):
            await broker.ask(messages.Act(samples=[ONE]))
            await until(lambda: broker.all(messages.Answered))
            await write(client, 0, CALL)
            await broker.ask(messages.Act(samples=[ONE]))
            assert len(broker.all(messages.Answered)) == 1
            broker.may.set()
            await until(lambda: len(broker.all(messages.Answered)) == 2)
        assert len((await get_session(client, ONE)).answers) == 2
    finally:
        broker.server.close()


async def test_a_sample_that_nobody_foresaw_is_given_back_and_the_others_go_on(
    config: Config, scene: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, broker, _, _ = scene
    one, other = ids()[:2]
    async with acting(config, where, broker) as worker:
        act = worker.work._actor.act

        async def strange(id: messages.SampleId) -> Any:
            if id == one:
                raise IndexError("no turn")
            return await act(id)

        monkeypatch.setattr(worker.work._actor, "act", strange)
        await broker.ask(messages.Act(samples=[one, other]))
        await until(lambda: broker.all(messages.GiveBack) and broker.all(messages.Answered))
        (back,) = broker.all(messages.GiveBack)
        assert (back.samples, back.reason, back.retry) == ([one], "IndexError: no turn", True)
        assert broker.all(messages.Answered)[0].samples == [other]


@pytest.mark.parametrize("kind", [EnvironmentDown, EnvironmentUnusable])
async def test_a_worker_without_processes_ends_and_blames_no_sample(
    config: Config, scene: Any, monkeypatch: pytest.MonkeyPatch, kind: type[EnvironmentFailed]
) -> None:
    where, broker, _, _ = scene

    async def work() -> None:
        async with acting(config, where, broker) as worker:

            async def none(id: messages.SampleId) -> Any:
                raise kind("none starts")

            monkeypatch.setattr(worker.work._actor, "act", none)
            await broker.ask(messages.Act(samples=[ONE]))
            await until(lambda: worker.stopping)

    with pytest.raises(kind, match="none starts"):
        await work()
    assert not broker.all(messages.GiveBack)


async def test_a_turn_that_is_stored_already_is_reported_and_not_written_again(config: Config, scene: Any) -> None:
    """A rollout worker that died after it stored it; and the order for the next turn before the acknowledgement."""
    where, recording, _, client = scene
    async with acting(config, where, recording):
        await recording.ask(messages.Act(samples=[ONE]))
        await until(lambda: recording.all(messages.Answered))
    await write(client, 0, CALL)
    recording.server.close()
    broker = SlowBroker(where.broker, (messages.Turned,))
    try:
        async with at_work(config, where, broker):
            await broker.ask(messages.Generate(samples=[ONE], begun=[ONE]))
            await until(lambda: broker.all(messages.Turned))
            assert broker.all(messages.Turned)[0].samples[0].length == 0
            assert len((await get_session(client, ONE)).turns) == 1
            await put_answer(client, ONE, 1, Answer(length=1), [7])
            await broker.ask(messages.Generate(samples=[ONE], begun=[ONE]))
            broker.may.set()
            await until(lambda: len(broker.all(messages.Turned)) >= 2)
        stored = await get_session(client, ONE)
        assert len(stored.turns) == 2
        assert broker.all(messages.Turned)[-1].samples[0].length == len(stored.turns[1])
    finally:
        broker.server.close()
