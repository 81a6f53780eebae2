"""Running samples are saved to the store as they grow, and the next worker continues from there."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from rhymed.core import messages
from rhymed.core.config import Config
from rhymed.core.errors import EngineError, PeerGone, StoreFull
from rhymed.core.service import stopwatch
from rhymed_store.client import NewSample, StoreClient
from rhymed_workers.engines.trace import TraceBook, TraceEngine
from rhymed_workers.rollout import worker
from rhymed_workers.rollout.worker import RolloutWorker
from tests.workers.peers import NAME, at_work, ids, newest_heartbeat, until


@pytest.fixture
def slow(config: Config) -> Config:
    """A token every 20 ms, saved every 50 ms; responses of some 60."""
    trace = config.trace.model_copy(update={"step_s": 0.02, "mean_length": 60})
    rollout = config.rollout.model_copy(update={"save_every_s": 0.05})
    return config.model_copy(update={"trace": trace, "rollout": rollout})


@pytest.fixture
def long(slow: Config) -> Config:
    """With responses of hundreds of tokens: none ends before a test has seen what it needs."""
    trace = slow.trace.model_copy(update={"mean_length": 1000})
    rollout = slow.rollout.model_copy(update={"max_response_length": 2000})
    return slow.model_copy(update={"trace": trace, "rollout": rollout})


def by_length(config: Config) -> list[messages.SampleId]:
    """Samples whose responses are of many lengths, the shortest first."""
    book = TraceBook(config.trace, config.rollout)
    return sorted(ids(count=16), key=lambda id: len(book.response(id)[0]))


def is_beginning(part: Any, config: Config, id: messages.SampleId) -> bool:
    tokens, _, _ = TraceBook(config.trace, config.rollout).response(id)
    return 0 < len(part) <= len(tokens) and bool(np.array_equal(part, tokens[: len(part)]))


async def test_a_running_sample_is_in_the_store_as_far_as_it_is_written(slow: Config, scene: Any) -> None:
    where, broker, _, client = scene
    asked = by_length(slow)[-1]
    seen = []
    async with at_work(slow, where, broker):
        await broker.ask(messages.Generate(samples=[asked]))
        while asked not in broker.generated:
            part = (await client.get_partials([asked])).get(asked, ())
            if len(part) and asked not in broker.generated:
                assert is_beginning(part, slow, asked)
                seen.append(len(part))
            await asyncio.sleep(0.02)
        assert await client.get_partials([asked]) == {}
    assert seen == sorted(seen)
    assert len(set(seen)) > 3, "it grew in several parts"


async def test_many_tokens_are_saved_before_their_time(long: Config, scene: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(worker, "MOST", 4)
    late = long.model_copy(update={"rollout": long.rollout.model_copy(update={"save_every_s": 3600.0})})
    where, broker, _, client = scene
    (asked,) = ids(count=1)
    async with at_work(late, where, broker):
        await broker.ask(messages.Generate(samples=[asked]))
        async with asyncio.timeout(60):
            while not (parts := await client.get_partials([asked])):
                await asyncio.sleep(0.02)
        assert is_beginning(parts[asked], late, asked)


async def test_a_worker_that_is_asked_to_stop_saves_all_and_leaves(long: Config, scene: Any) -> None:
    late = long.model_copy(update={"rollout": long.rollout.model_copy(update={"save_every_s": 3600.0})})
    where, broker, _, client = scene
    asked = ids()
    async with at_work(late, where, broker) as worker:
        await broker.ask(messages.Generate(samples=asked))
        await until(lambda: len(worker.work.engine.progress()) == 4 and all(worker.work.engine.progress().values()))
        assert await client.get_partials(asked) == {}
        before = worker.work.engine.progress()
    parts = await client.get_partials(asked)
    assert all(len(parts[id]) >= before[id] and is_beginning(parts[id], late, id) for id in asked)
    assert [leave.worker for leave in broker.all(messages.Leave)] == [NAME]


async def test_the_next_worker_goes_on_where_a_dead_one_was(long: Config, scene: Any) -> None:
    where, broker, _, client = scene
    (asked,) = ids(count=1)
    worker = RolloutWorker(long, where, NAME)
    life = asyncio.ensure_future(worker.run())
    await until(lambda: broker.all(messages.Join))
    await broker.ask(messages.LoadVersion(version=0, weights=where.weights))
    await broker.ask(messages.Generate(samples=[asked]))
    async with asyncio.timeout(60):
        while len((await client.get_partials([asked])).get(asked, ())) < 5:
            await asyncio.sleep(0.02)
    worker._failure = EngineError("gone")  # so that nothing is handed back
    worker.stop()
    with pytest.raises(EngineError):
        await life
    saved = (await client.get_partials([asked]))[asked]
    broker.received.clear()
    quick = long.model_copy(update={"trace": long.trace.model_copy(update={"step_s": 0.001})})
    async with at_work(quick, where, broker):
        await broker.ask(messages.Generate(samples=[asked], begun=[asked]))
        await until(lambda: asked in broker.generated)
    (whole,) = await client.get_samples([asked])
    np.testing.assert_array_equal(whole.tokens, TraceBook(quick.trace, quick.rollout).response(asked)[0])
    verified, kept = broker.generated[asked].ahead
    assert verified == kept >= len(saved)  # more: a part was on its way to the store


async def test_a_store_that_is_away_does_not_stop_the_engine(
    long: Config, scene: Any, monkeypatch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    where, broker, _, client = scene
    put, away = StoreClient.put_partials, asyncio.Event()

    async def refuse(self: StoreClient, parts: Any, **given: Any) -> list[messages.SampleId]:
        if not away.is_set():
            raise worker.RhymedError("away")
        return await put(self, parts, **given)

    monkeypatch.setattr(worker, "RETRY_S", 0.05)
    monkeypatch.setattr(StoreClient, "put_partials", refuse)
    (asked,) = ids(count=1)
    async with at_work(long, where, broker):
        await broker.ask(messages.Generate(samples=[asked]))
        await until(
            lambda: (
                broker.all(messages.Heartbeat)
                and newest_heartbeat(broker).get(asked, messages.Holding(id=asked)).tokens > 5
            )
        )
        away.set()
        async with asyncio.timeout(60):
            while not (parts := await client.get_partials([asked])):
                assert asked not in broker.generated
                await asyncio.sleep(0.01)
        assert len(parts[asked]) > 5, "what had come meanwhile, too"
    assert sum("are not saved: away" in record.getMessage() for record in caplog.records) == 1


async def test_a_store_that_refuses_is_left_alone_for_a_while(slow: Config, scene: Any, monkeypatch: Any) -> None:
    asked = 0

    async def refuse(self: StoreClient, parts: Any, **given: Any) -> list[messages.SampleId]:
        nonlocal asked
        asked += 1
        raise StoreFull("no room")

    monkeypatch.setattr(worker, "RETRY_S", 3600.0)
    monkeypatch.setattr(StoreClient, "put_partials", refuse)
    where, broker, _, _ = scene
    async with at_work(slow, where, broker):
        await broker.ask(messages.Generate(samples=ids()))
        await until(lambda: len(broker.generated) == 4)
        assert asked == 1


async def test_a_beginning_that_another_worker_cut_is_saved_again(long: Config, scene: Any) -> None:
    where, broker, _, client = scene
    (asked,) = ids(count=1)
    whole, _, _ = TraceBook(long.trace, long.rollout).response(asked)

    async def saved() -> int:
        return len((await client.get_partials([asked])).get(asked, ()))

    async with at_work(long, where, broker), asyncio.timeout(60):
        await broker.ask(messages.Generate(samples=[asked]))
        while (before := await saved()) < 8:
            await asyncio.sleep(0.01)
        await client.put_partials({asked: (0, whole[:2])})  # that one was held up, and goes on
        while await saved() <= before:
            assert asked not in broker.generated
            await asyncio.sleep(0.01)
        assert is_beginning((await client.get_partials([asked]))[asked], long, asked)


async def test_a_worker_that_leaves_takes_nothing_and_saves_to_the_last(
    long: Config, scene: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr("rhymed.core.service.service.DRAIN_S", 60.0)
    rollout = long.rollout.model_copy(update={"save_every_s": 3600.0})
    trace = long.trace.model_copy(update={"mean_length": 200, "sample_sigma": 1.5})  # 10 tokens, and 1,000
    late = long.model_copy(update={"rollout": rollout, "trace": trace})
    where, broker, _, client = scene
    short, *_, last = by_length(late)
    put, release = StoreClient.put_samples, asyncio.Event()

    async def wait(self: StoreClient, samples: Any, **given: Any) -> Any:
        await release.wait()
        return await put(self, samples, **given)

    monkeypatch.setattr(StoreClient, "put_samples", wait)
    async with at_work(late, where, broker) as worker:
        await broker.ask(messages.Generate(samples=[short, last]))
        await until(lambda: list(worker.work.engine.progress()) == [last])
        worker.stop()
        async with asyncio.timeout(60):
            while not (begun := await client.get_partials([last])):
                await asyncio.sleep(0.01)
        with pytest.raises(PeerGone, match="takes no more samples"):
            await broker.ask(messages.Generate(samples=ids(step=1)))
        await until(lambda: worker.work.engine.progress()[last] > len(begun[last]) + 2)
        release.set()
    parts = await client.get_partials([last])
    assert len(parts[last]) > len(begun[last]) + 2
    assert is_beginning(parts[last], late, last)


async def test_an_earlier_record_is_what_is_reported(slow: Config, scene: Any, monkeypatch: Any) -> None:
    where, broker, _, client = scene
    (asked,) = ids(count=1)
    put, earlier = StoreClient.put_samples, asyncio.Event()

    async def wait(self: StoreClient, samples: Any, **given: Any) -> Any:
        await earlier.wait()
        return await put(self, samples, **given)

    monkeypatch.setattr(StoreClient, "put_samples", wait)
    async with at_work(slow, where, broker):
        await broker.ask(messages.Generate(samples=[asked]))
        await until(lambda: broker.all(messages.Heartbeat) and asked in newest_heartbeat(broker))
        info = messages.SampleInfo(
            id=asked, prompt_length=1, length=2, finish_reason="length", versions=[(0, 1), (1, 1)]
        )
        await put(client, [NewSample(info, [7], [1, 2], [-0.5, -0.5])])
        earlier.set()
        await until(lambda: asked in broker.generated)
    assert broker.generated[asked].length == 2
    assert broker.generated[asked].versions == [(0, 1), (1, 1)]


class Stuck(TraceEngine):
    """Accepts tasks and never makes a token."""

    async def _steps(self) -> None:
        while True:
            while self._waiting:
                entry = self._waiting.popleft()
                self._running[entry.task.id] = entry
            await asyncio.sleep(0.01)


async def test_an_engine_that_makes_no_token_ends_its_worker(config: Config, scene: Any) -> None:
    where, broker, _, _ = scene
    impatient = config.model_copy(update={"rollout": config.rollout.model_copy(update={"stall_s": 0.5})})
    worker = RolloutWorker(impatient, where, NAME, Stuck(impatient.trace, impatient.rollout))
    life = asyncio.ensure_future(worker.run())
    await until(lambda: broker.all(messages.Join))
    await broker.ask(messages.LoadVersion(version=0, weights=where.weights))
    await asyncio.sleep(1.0)
    assert not life.done(), "an engine that has nothing to do is not stuck"
    await broker.ask(messages.Generate(samples=ids()))
    with pytest.raises(EngineError, match=r"no token for 0\.5 s"):
        await asyncio.wait_for(life, 60)


async def test_progress_of_any_sample_is_progress() -> None:
    states = iter(range(1000))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.0):
            await stopwatch.watch_progress(lambda: next(states), 0.2, EngineError("stuck"))
