"""The rollout worker with the trace engine, between a real store and a broker that only records messages."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from rhymed.core import messages
from rhymed.core.config import Config
from rhymed.core.errors import DeadlineExceeded, EngineError, PeerGone, Unstartable
from rhymed.core.run.layout import layout_of
from rhymed.core.service.stopwatch import ACTIVITIES, seconds_of
from rhymed.inputs.rows import prompt_id
from rhymed_store.browse import Browse
from rhymed_store.client import StoreClient
from rhymed_store.database.tables import Reader
from rhymed_store.service import StoreService
from rhymed_workers.engines.base import DraftReport
from rhymed_workers.engines.trace import LOAD_S, TraceBook, TraceEngine
from rhymed_workers.rollout import turns, weights
from rhymed_workers.rollout.worker import RolloutWorker
from tests.workers.peers import (
    BAD,
    NAME,
    ROWS,
    RecordingBroker,
    RecordingTrainer,
    at_work,
    ids,
    newest_heartbeat,
    until,
)


async def test_samples_are_stored_then_reported(config: Config, scene: Any) -> None:
    where, broker, _, client = scene
    async with at_work(config, where, broker):
        join = broker.all(messages.Join)[0]
        assert (join.role, join.slots, join.version, join.holding) == ("rollout", 8, -1, [])
        await broker.ask(messages.Generate(samples=ids()))
        await until(lambda: len(broker.generated) == 4)
        stored = await client.get_samples(ids(), logprobs=True, prompt_tokens=True)
        await until(
            lambda: (
                broker.received[-1].holding == [] if isinstance(broker.received[-1], messages.Heartbeat) else False
            )
        )
    book = TraceBook(config.trace, config.rollout)
    for id, sample in zip(ids(), stored, strict=True):
        tokens, logprobs, reason = book.response(id)
        assert sample.info == broker.generated[id]
        assert sample.info.finish_reason == reason
        assert sample.info.versions == [(0, len(tokens))]
        np.testing.assert_array_equal(sample.tokens, tokens)
        np.testing.assert_array_equal(sample.logprobs, logprobs)
        assert bytes(sample.prompt_tokens.tolist()) == b"count to 0"
    assert [leave.worker for leave in broker.all(messages.Leave)] == [NAME]


def drafted_of(where: Any, id: messages.SampleId) -> Any:
    """Which of its tokens the store says were accepted drafts: a copy of it, for a process opens one only once."""
    with tempfile.TemporaryDirectory() as copy, contextlib.ExitStack() as opened:
        shutil.copy(where.database / "data.mdb", copy)
        reader = opened.enter_context(Reader(Path(copy)))
        browse = Browse(reader)
        (found,) = [found for found in browse.headers(id.prompt) if found.sample == id]
        (mask,) = browse.drafted([found])
    return mask


async def test_nothing_is_sampled_before_a_version_is_loaded(config: Config, scene: Any) -> None:
    where, broker, trainer, _ = scene
    async with at_work(config, where, broker, version=None) as worker:
        await broker.ask(messages.Generate(samples=ids()))
        await until(lambda: any(beat.holding for beat in broker.all(messages.Heartbeat)))
        assert worker.work.engine.progress() == {}
        trainer.missing.add(5)
        await broker.ask(messages.LoadVersion(version=5, weights=where.weights))
        await until(lambda: 5 in trainer.asked)
        await broker.ask(
            messages.LoadVersion(version=6, weights=where.weights)
        )  # overtakes the one that cannot be had
        await until(lambda: len(broker.generated) == 4)
        assert [loaded.version for loaded in broker.all(messages.Loaded)] == [6]
        assert all(info.versions[0][0] == 6 for info in broker.generated.values())


async def test_a_version_is_loaded_while_samples_run(config: Config, scene: Any) -> None:
    where, broker, _, _ = scene
    slow = config.model_copy(update={"trace": config.trace.model_copy(update={"step_s": 0.05, "mean_length": 60})})
    async with at_work(slow, where, broker) as worker:
        await broker.ask(messages.Generate(samples=ids()))
        await until(lambda: any(worker.work.engine.progress().values()))
        await broker.ask(messages.LoadVersion(version=1, weights=where.weights))
        await until(lambda: len(broker.generated) == 4)
        beat = broker.all(messages.Heartbeat)[-1]
    assert [0, 1] in [[version for version, _ in info.versions] for info in broker.generated.values()]
    assert [loaded.version for loaded in broker.all(messages.Loaded)] == [0, 1]
    assert {"rollout/tokens_per_s", "timing_s/load_weights"} <= set(beat.stats)


async def test_a_version_is_loaded_again_when_another_trainer_made_it(config: Config, scene: Any) -> None:
    where, broker, trainer, _ = scene
    async with at_work(config, where, broker, version=None):
        assert broker.all(messages.Join)[0].life == ""
        for count, life in enumerate(("first", "second", "second"), 1):
            await broker.ask(messages.LoadVersion(version=7, weights=where.weights, life=life))
            await until(lambda count=count: len(broker.all(messages.Loaded)) == count)
        assert trainer.asked == [7, 7], "what is loaded is not fetched again"
        beats = len(broker.all(messages.Heartbeat))
        await until(lambda: len(broker.all(messages.Heartbeat)) > beats)
        beat = broker.all(messages.Heartbeat)[-1]
        assert (beat.version, beat.life) == (7, "second")
        broker.known = False
        await until(lambda: len(broker.all(messages.Join)) == 2)
        again = broker.all(messages.Join)[1]
        assert (again.version, again.life) == (7, "second")


async def test_weights_that_cannot_be_had_end_the_worker_after_its_patience(
    config: Config, scene: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "PATIENCE_S", 0.2)
    monkeypatch.setattr(weights, "RETRY_S", 0.05)
    where, broker, trainer, _ = scene
    trainer.missing.add(5)
    worker = RolloutWorker(config, where, NAME)
    ended = asyncio.ensure_future(worker.run())
    await until(lambda: broker.all(messages.Join))
    await broker.ask(messages.LoadVersion(version=5, weights=where.weights))
    with pytest.raises(DeadlineExceeded, match=r"version 5 .*given up after 0\.2 s: version 5 is not kept"):
        await asyncio.wait_for(ended, 60)
    assert len(trainer.asked) > 1


async def test_a_bad_prompt_is_given_back_for_good_and_harms_no_other(config: Config, scene: Any) -> None:
    where, broker, _, _ = scene
    async with at_work(config, where, broker):
        unknown = messages.SampleId(step=0, prompt="f" * 16, index=0)
        await broker.ask(messages.Generate(samples=[*ids(BAD, count=2), unknown, *ids()]))
        await until(lambda: len(broker.generated) == 4 and len(broker.all(messages.GiveBack)) == 3)
    backs = {back.samples[0]: back for back in broker.all(messages.GiveBack)}
    assert set(backs) == {*ids(BAD, count=2), unknown}
    assert not any(back.retry for back in backs.values())
    assert "column `prompt`" in backs[ids(BAD)[0]].reason


async def test_cancelled_samples_are_neither_stored_nor_reported(config: Config, scene: Any) -> None:
    where, broker, _, client = scene
    slow = config.model_copy(update={"trace": config.trace.model_copy(update={"step_s": 0.04, "mean_length": 200})})
    async with at_work(slow, where, broker) as worker:
        await broker.ask(messages.Generate(samples=ids()))
        await until(lambda: len(worker.work.engine.progress()) == 4)
        await broker.ask(messages.Cancel(samples=ids()[:2]))
        await until(lambda: len(broker.generated) == 2)
        assert set(broker.generated) == set(ids()[2:])
        assert worker.work.engine.progress() == {}
        assert (await client.stats()).samples == 2


async def test_a_broker_that_forgot_is_joined_again_and_hears_what_is_held(config: Config, scene: Any) -> None:
    where, broker, _, _ = scene
    slow = config.model_copy(update={"trace": config.trace.model_copy(update={"step_s": 0.03, "mean_length": 200})})
    async with at_work(slow, where, broker) as worker:
        await broker.ask(messages.Generate(samples=ids()))
        await until(lambda: any(worker.work.engine.progress().values()))
        broker.known = False
        await until(lambda: len(broker.all(messages.Join)) == 2)
        again = broker.all(messages.Join)[1]
        assert (again.version, set(again.holding)) == (0, set(ids()))
        await until(lambda: len(broker.generated) == 4)


async def test_a_store_that_is_away_for_a_while_costs_nothing(config: Config, tmp_path: Path) -> None:
    where = layout_of(config)
    broker, trainer = RecordingBroker(where.broker), RecordingTrainer(where.weights, tmp_path / "weights")
    async with StoreService(config.store, where).running():
        client = StoreClient(where.store, "broker")
        await client.put_prompts(ROWS)
        client.close()
    async with at_work(config, where, broker):
        await broker.ask(messages.Generate(samples=ids()))
        await asyncio.sleep(0.2)
        assert not broker.generated
        async with StoreService(config.store, where).running():
            await until(lambda: len(broker.generated) == 4)
    broker.server.close()
    trainer.server.close()


class Drafting(TraceEngine):
    """A trace engine that keeps the history it was given, and reports drafts."""

    def __init__(self, config: Config) -> None:
        super().__init__(config.trace, config.rollout)
        self.remembered: list[tuple[str, list[int], list[messages.SampleId]]] = []

    async def remember(self, prompt: str, tokens: Any, past: Any) -> None:
        self.remembered.append((prompt, list(tokens), [sample.info.id for sample in past]))

    async def drafting(self, ids: Any) -> list[DraftReport]:
        account = messages.Drafting(3, 2, 1, 0.5, 0.75, 0.25)
        return [
            DraftReport(msgspec.structs.replace(account, forwards=id.index), b"\1\3") if id.index else DraftReport()
            for id in ids
        ]


@pytest.fixture
def speculating(config: Config, monkeypatch: pytest.MonkeyPatch) -> Config:
    """As with vLLM, but for the model: prompts are bytes."""
    render = turns.load_renderer(config)
    monkeypatch.setattr(turns, "load_renderer", lambda config: render)
    return config.model_copy(update={"rollout": config.rollout.model_copy(update={"engine": "vllm"})})


async def test_history_goes_to_the_engine_and_what_it_brought_to_the_broker(speculating: Config, scene: Any) -> None:
    where, broker, _, client = scene
    engine = Drafting(speculating)
    async with at_work(speculating, where, broker, engine=engine):
        await broker.ask(messages.Generate(samples=ids()))
        await until(lambda: len(broker.generated) == 4)
        assert engine.remembered == []
        await broker.ask(messages.LoadVersion(version=1, weights=where.weights))
        await broker.ask(messages.Generate(samples=ids(step=1)))
        await until(lambda: len(broker.generated) == 8 and engine.remembered)
    (past,) = engine.remembered
    assert past[:2] == (prompt_id(ROWS[0]), list(b"count to 0"))
    assert sorted(past[2]) == ids()
    drafting = [broker.generated[id].drafting for id in ids()]
    assert drafting == [None, *(messages.Drafting(index, 2, 1, 0.5, 0.75, 0.25) for index in (1, 2, 3))]
    assert [sample.info.drafting for sample in await client.get_samples(ids())] == [None] * 4
    masks = [drafted_of(where, id) for id in ids()]
    assert masks[0] is None
    assert [mask[:4].tolist() for mask in masks[1:]] == [[False, True, True, False]] * 3
    assert not any(mask[4:].any() for mask in masks[1:])


async def test_history_that_cannot_be_read_harms_no_sample(
    speculating: Config, scene: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gone(*arguments: Any) -> Any:
        raise PeerGone("the store went away")

    monkeypatch.setattr(StoreClient, "history", gone)
    where, broker, _, _ = scene
    engine = Drafting(speculating)
    async with at_work(speculating, where, broker, engine=engine):
        await broker.ask(messages.Generate(samples=[*ids(), *ids(ROWS[1])]))
        await until(lambda: len(broker.generated) == 8)
    assert engine.remembered == []
    assert sum("no drafts from history while" in record.getMessage() for record in caplog.records) == 1


async def test_without_drafts_no_history_is_read(
    speculating: Config, scene: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(StoreClient, "history", lambda self, *arguments: asked.append(arguments))
    where, broker, _, _ = scene
    plain = speculating.model_copy(update={"drafts": speculating.drafts.model_copy(update={"method": "none"})})
    async with at_work(plain, where, broker, engine=Drafting(plain)):
        await broker.ask(messages.Generate(samples=ids()))
        await until(lambda: len(broker.generated) == 4)
    assert asked == []


class Dying(TraceEngine):
    """A trace engine that dies at its first task."""

    async def generate(self, task: Any) -> Any:
        raise EngineError("the engine died")


async def test_the_worker_ends_with_its_engine(config: Config, scene: Any) -> None:
    where, broker, _, _ = scene
    worker = RolloutWorker(config, where, NAME, Dying(config.trace, config.rollout))
    ended = asyncio.ensure_future(worker.run())
    await until(lambda: broker.all(messages.Join))
    await broker.ask(messages.LoadVersion(version=0, weights=where.weights))
    await broker.ask(messages.Generate(samples=ids()))
    with pytest.raises(EngineError, match="the engine died"):
        await asyncio.wait_for(ended, 60)
    assert broker.all(messages.Leave)


async def test_finish_ends_it(config: Config, scene: Any) -> None:
    where, broker, _, _ = scene
    worker = RolloutWorker(config, where, NAME)
    ended = asyncio.ensure_future(worker.run())
    await until(lambda: broker.all(messages.Join))
    await broker.ask(messages.Finish(reason="all steps are trained"))
    await asyncio.wait_for(ended, 60)
    assert not broker.all(messages.Leave)


async def test_what_is_written_ahead_waits_and_is_verified(config: Config, scene: Any) -> None:
    where, broker, _, client = scene
    asked = ids(step=1)
    async with at_work(config, where, broker):
        await broker.ask(messages.Generate(samples=asked))
        await until(lambda: {id for report in broker.all(messages.Ahead) for id in report.samples} == set(asked))
        await until(lambda: broker.all(messages.Heartbeat) and set(newest_heartbeat(broker)) == set(asked))
        await until(lambda: all(item.parked for item in newest_heartbeat(broker).values()))
        assert set(newest_heartbeat(broker)) == set(asked)
        assert not broker.generated
        await broker.ask(messages.LoadVersion(version=1, weights=where.weights))
        await until(lambda: len(broker.generated) == 4)
        stored = await client.get_samples(asked)
    book = TraceBook(config.trace, config.rollout)
    for id, sample in zip(asked, stored, strict=True):
        tokens, _, _ = book.response(id)
        np.testing.assert_array_equal(sample.tokens, tokens)
        assert sample.info.versions == [(1, len(tokens))], "no token is of the old weights"
        assert broker.generated[id].ahead == (len(tokens), len(tokens))
        assert drafted_of(where, id).all(), "all was verified, and nothing written anew"


async def test_what_is_half_written_goes_on_under_the_new_weights(config: Config, scene: Any) -> None:
    where, broker, _, _ = scene
    slow = config.model_copy(update={"trace": config.trace.model_copy(update={"step_s": 0.03})})
    asked = ids(step=1)
    async with at_work(slow, where, broker):
        await broker.ask(messages.Generate(samples=asked))
        await until(
            lambda: (
                broker.all(messages.Heartbeat) and any(item.tokens > 2 for item in newest_heartbeat(broker).values())
            )
        )
        await broker.ask(messages.LoadVersion(version=1, weights=where.weights))
        await until(lambda: len(broker.generated) == 4)
    for info in broker.generated.values():
        assert [version for version, _ in info.versions] == [1]
        assert info.ahead[1] == info.ahead[0] <= info.length
    assert any(info.ahead[0] > 0 for info in broker.generated.values())


async def test_a_running_sample_is_handed_over_with_what_it_has(config: Config, scene: Any) -> None:
    where, broker, _, client = scene
    slow = config.model_copy(update={"trace": config.trace.model_copy(update={"step_s": 0.03, "mean_length": 200})})
    (asked,) = ids(count=1)
    async with at_work(slow, where, broker):
        await broker.ask(messages.Generate(samples=[asked]))
        await until(
            lambda: (
                broker.all(messages.Heartbeat)
                and newest_heartbeat(broker).get(asked, messages.Holding(id=asked)).tokens > 2
            )
        )
        await broker.ask(messages.Release(samples=[asked]))
        await until(lambda: broker.all(messages.GiveBack))
        back = broker.all(messages.GiveBack)[0]
        assert (back.samples, back.retry) == ([asked], True)
        partial = (await client.get_partials([asked]))[asked]
        tokens, _, _ = TraceBook(slow.trace, slow.rollout).response(asked)
        assert 2 < len(partial) < len(tokens)
        np.testing.assert_array_equal(partial, tokens[: len(partial)])

        await until(lambda: not newest_heartbeat(broker))
        await broker.ask(messages.Generate(samples=[asked], begun=[asked]))
        await until(lambda: asked in broker.generated)
        assert broker.generated[asked].ahead == (len(partial), len(partial))
        assert await client.get_partials([asked]) == {}, "the finished sample removes its beginning"
    mask = [place < len(partial) for place in range(len(tokens))]
    assert drafted_of(where, asked).tolist() == mask, "what the first worker wrote was verified by the second"


async def test_a_parked_sample_is_handed_over_or_cancelled_at_once(config: Config, scene: Any) -> None:
    where, broker, _, client = scene
    first, second = ids(step=1, count=2)
    async with at_work(config, where, broker):
        await broker.ask(messages.Generate(samples=[first, second]))
        await until(lambda: {id for report in broker.all(messages.Ahead) for id in report.samples} == {first, second})
        await broker.ask(messages.Release(samples=[first]))
        await broker.ask(messages.Cancel(samples=[second]))
        await until(lambda: broker.all(messages.GiveBack))
        await until(lambda: not newest_heartbeat(broker))
        assert [message.samples for message in broker.all(messages.GiveBack)] == [[first]]
        tokens, _, _ = TraceBook(config.trace, config.rollout).response(first)
        np.testing.assert_array_equal((await client.get_partials([first]))[first], tokens)


async def test_a_beginning_that_the_store_has_lost_is_written_again(config: Config, scene: Any) -> None:
    where, broker, _, _ = scene
    (asked,) = ids(count=1)
    async with at_work(config, where, broker):
        await broker.ask(messages.Generate(samples=[asked], begun=[asked]))
        await until(lambda: asked in broker.generated)
    assert broker.generated[asked].ahead == (0, 0)


async def test_every_second_is_reported_as_some_activity(config: Config, scene: Any) -> None:
    where, broker, _, _ = scene
    early = time.monotonic()
    async with at_work(config, where, broker) as worker:
        late = time.monotonic()
        await broker.ask(messages.Generate(samples=ids()))
        await until(lambda: len(broker.generated) == 4)
        await broker.ask(messages.LoadVersion(version=1, weights=where.weights))
        await until(lambda: len(broker.all(messages.Loaded)) == 2)
        before = time.monotonic()
        seconds = seconds_of("rollout", worker._heartbeat().stats)
        assert before - late <= sum(seconds.values()) <= time.monotonic() - early
        await until(lambda: seconds_of("rollout", broker.all(messages.Heartbeat)[-1].stats)["idle"] > seconds["idle"])
    assert tuple(seconds) == ACTIVITIES["rollout"]
    assert min(seconds["decode"], seconds["idle"]) > 0
    assert seconds["update"] >= 2 * LOAD_S
    beats = [seconds_of("rollout", beat.stats) for beat in broker.all(messages.Heartbeat)]
    assert all(one[name] <= other[name] for one, other in pairwise(beats) for name in one), "they only grow"


@pytest.fixture
def colocated(config: Config) -> Config:
    return config.model_copy(update={"schedule": config.schedule.model_copy(update={"colocate": True})})


async def test_a_colocated_engine_is_started_when_it_is_woken(colocated: Config, scene: Any) -> None:
    """A worker that returns while the trainer trains finds its GPUs in use."""
    where, broker, _, _ = scene
    async with at_work(colocated, where, broker, version=None) as worker:
        assert broker.all(messages.Join)[0].asleep
        await until(lambda: broker.all(messages.Heartbeat))
        assert broker.all(messages.Heartbeat)[-1].phase == "asleep"
        assert not hasattr(worker.work.engine, "_book"), "the engine is not open"
        await broker.ask(messages.LoadVersion(version=3, weights=where.weights))
        await until(lambda: broker.all(messages.Loaded))
        await broker.ask(messages.Generate(samples=ids(step=3)))
        await until(lambda: len(broker.generated) == 4)


class Unstarted(TraceEngine):
    """A trace engine that does not start."""

    async def open(self) -> None:
        raise Unstartable("vLLM did not start: out of memory")


async def test_a_colocated_engine_that_does_not_start_ends_its_worker(colocated: Config, scene: Any) -> None:
    """The supervisor gets the reason, and the worker does not try again while the trainer uses the GPU."""
    where, broker, _, _ = scene
    worker = RolloutWorker(colocated, where, NAME, Unstarted(colocated.trace, colocated.rollout))
    ended = asyncio.ensure_future(worker.run())
    await until(lambda: broker.all(messages.Join))
    await broker.ask(messages.LoadVersion(version=0, weights=where.weights))
    with pytest.raises(Unstartable, match="out of memory"):
        await asyncio.wait_for(ended, 60)


async def test_a_colocated_engine_is_gone_when_its_worker_reports_that_it_leaves(
    colocated: Config, scene: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker gives the GPU to the trainer then."""
    where, broker, _, _ = scene
    left: list[int] = []
    close = TraceEngine.close

    async def slow(self: TraceEngine) -> None:
        left.append(len(broker.all(messages.Leave)))
        await close(self)

    monkeypatch.setattr(TraceEngine, "close", slow)
    async with at_work(colocated, where, broker):
        pass
    assert left[0] == 0
    assert len(broker.all(messages.Leave)) == 1


async def test_samples_wait_while_the_engine_sleeps(colocated: Config, scene: Any) -> None:
    where, broker, _, _ = scene
    slow = colocated.model_copy(update={"trace": colocated.trace.model_copy(update={"step_s": 0.02})})
    async with at_work(slow, where, broker) as worker:
        await broker.ask(messages.Generate(samples=ids()))
        await until(lambda: any(worker.work.engine.progress().values()))
        await broker.ask(messages.Sleep())
        await until(lambda: broker.all(messages.Asleep))
        begun = dict(worker.work.engine.progress())
        await broker.ask(messages.Sleep())
        await until(lambda: len(broker.all(messages.Asleep)) == 2)
        assert worker.work.engine.progress() == begun
        assert worker.work._engine_state() is None, "it does not stall: it sleeps"
        broker.known = False  # it has restarted
        await until(lambda: len(broker.all(messages.Join)) == 2)
        assert broker.all(messages.Join)[1].asleep
        await broker.ask(messages.LoadVersion(version=0, weights=where.weights))
        await until(lambda: len(broker.generated) == 4)
    assert sum(one.version == 0 for one in broker.all(messages.Loaded)) == 2, "the same version wakes it"
    expected = TraceBook(slow.trace, slow.rollout)
    for id, info in broker.generated.items():
        assert info.length == len(expected.response(id)[0])


async def test_a_worker_that_is_asked_to_wake_does_not_join_as_asleep(colocated: Config, scene: Any) -> None:
    """A broker that has restarted must not give its GPUs to the trainer."""
    where, broker, trainer, _ = scene
    trainer.missing.add(5)
    async with at_work(colocated, where, broker):
        await broker.ask(messages.Sleep())
        await until(lambda: broker.all(messages.Asleep))
        await broker.ask(messages.LoadVersion(version=5, weights=where.weights))
        broker.known = False
        await until(lambda: len(broker.all(messages.Join)) == 2)
        assert not broker.all(messages.Join)[1].asleep
