"""A run of several stores answers as one of a single store does, whatever is asked."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from rhymed.config import Config
from rhymed.errors import MalformedMessage, RunMismatch, UnknownSample
from rhymed.inputs.rows import prompt_id
from rhymed.messages import (
    Cursor,
    Drawn,
    ForgetLogprobs,
    GetJournal,
    GetStoreStats,
    OpenRun,
    SampleId,
    Score,
    ToStore,
)
from rhymed.run.layout import RunLayout, layout_of
from rhymed_store.client import StoreClient, StoredSample
from rhymed_store.position import position_of
from rhymed_store.service import StoreService
from rhymed_store.shards import merge
from rhymed_store.shards.client import ShardedClient, connect
from rhymed_store.shards.place import PROMPTS
from rhymed_store.shards.split import shard_of
from tests.store.stores import new_sample

LOW, NEXT, HIGH = "00000000000000aa", "7fffffffffffffff", "c0000000000000ab"
DRAWN = Drawn(step=0, start=Cursor(), refill=Cursor(position=2), refilled=1, after=Cursor(position=3), reserved=[])
ROWS = [{"prompt": f"count to {number}"} for number in range(9)]


def config_of(folder: Path, shards: int, name: str = "run") -> Config:
    return Config.model_validate(
        {"run": {"folder": str(folder), "name": name}, "store": {"map_gib": 0.0625, "shards": shards}}
    )


@contextlib.asynccontextmanager
async def running(layout: RunLayout, config: Config) -> AsyncIterator[StoreClient]:
    async with contextlib.AsyncExitStack() as started:
        for one in layout.stores:
            await started.enter_async_context(StoreService(config.store, one).running())
        client = connect(layout, "test")
        started.callback(client.close)
        yield client


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[tuple[StoreClient, StoreClient]]:
    """A single store, and three with the same calls."""
    async with contextlib.AsyncExitStack() as started:
        clients = []
        for shards in (1, 3):
            config = config_of(tmp_path, shards, f"of{shards}")
            clients.append(await started.enter_async_context(running(layout_of(config), config)))
        yield clients[0], clients[1]


def seen(answer: Any) -> Any:
    """An answer with its arrays as lists."""
    if isinstance(answer, np.ndarray):
        return answer.tolist()
    if isinstance(answer, StoredSample):
        return [seen(getattr(answer, name)) for name in answer.__dataclass_fields__]
    if isinstance(answer, list | tuple):
        return [seen(one) for one in answer]
    return [(key, seen(value)) for key, value in answer.items()] if isinstance(answer, dict) else answer


def story(client: StoreClient) -> Iterator[Any]:
    """Calls of a run, one after another."""
    samples = [
        new_sample(step, index, prompt=prompt) for step in (0, 1) for prompt in (HIGH, LOW, NEXT) for index in (1, 0)
    ]
    ids = [sample.info.id for sample in samples]
    begun = {SampleId(2, prompt, 0): (0, [1, 2, 3]) for prompt in (NEXT, HIGH, LOW)}
    late = {SampleId(2, prompt, 1): (7, [1, 2, 3]) for prompt in (HIGH, LOW)}
    weights = {ids[1]: np.ones(50, np.float32).tobytes(), ids[3]: np.zeros(50, np.float32).tobytes()}
    scores = [Score(id=id, reward=index / 8) for index, id in enumerate(ids[:9])]
    yield client.open_run("run", "{}", "id")
    yield client.put_prompts(ROWS)
    yield client.get_prompts([prompt_id(row) for row in reversed(ROWS)])
    yield client.put_samples(samples)
    yield client.put_samples([new_sample(1, 0, prompt=prompt, length=9) for prompt in (LOW, HIGH)])  # other content
    yield client.put_partials(begun)
    yield client.put_partials(late | begun)
    yield client.get_partials([*late, *begun])
    yield client.put_scores(scores, weights)
    yield client.get_samples(ids[::-1], logprobs=True, prompt_tokens=True)
    yield client.mark(ids[:2], "trained", drawn=DRAWN)
    yield client.mark([SampleId(1, HIGH, 5), SampleId(1, LOW, 5)], "dropped", "why not")
    yield client.put_token_stats(0, {id: np.zeros((4, 50), np.float16) for id in ids[:3]}, begins=True)
    yield client.put_token_stats(1, {ids[6]: np.ones((4, 50), np.float16)}, begins=True)
    yield client.lengths([HIGH, "4000000000000000", LOW], 2)
    yield client.history(HIGH, 2)
    yield client.history(LOW, 1, 1)
    yield client.read_journal(0, 2)
    yield client.forget_logprobs(1)
    yield client.journal(0)


async def test_every_answer_is_that_of_a_single_store(pair: tuple[StoreClient, StoreClient]) -> None:
    for single, several in zip(*map(story, pair), strict=True):
        assert seen(await several) == seen(await single)
    single, several = [await client.stats() for client in pair]
    for name in ("samples", "tokens", "prompts", "full"):
        assert getattr(several, name) == getattr(single, name)
    assert several.map_bytes == 3 * single.map_bytes
    assert [shard_of(prompt, 3) for prompt in (LOW, NEXT, HIGH)] == [0, 1, 2]


async def test_errors_are_those_of_a_single_store(pair: tuple[StoreClient, StoreClient]) -> None:
    for client in pair:
        await client.put_samples([new_sample(prompt=LOW)])
        with pytest.raises(UnknownSample, match=f"sample 3/{HIGH}/0 was never stored"):
            await client.get_samples([SampleId(0, LOW, 0), SampleId(3, HIGH, 0)])
        with pytest.raises(MalformedMessage, match="16 lower-case hex digits"):
            await client.get_prompts(["0x12"])
        assert await client.put_samples([]) == []
        assert await client.get_samples([]) == []


async def test_a_store_that_is_away_holds_up_only_its_own_prompts(tmp_path: Path) -> None:
    config = config_of(tmp_path, 2)
    first, second = layout_of(config).stores
    client = connect(layout_of(config), "test")
    async with StoreService(config.store, first).running():
        await client.put_samples([new_sample(prompt=LOW)])
        with pytest.raises(Exception, match="store-1 at"):
            await client.put_samples([new_sample(1, prompt=LOW), new_sample(1, prompt=HIGH)], deadline_s=0.3)
        assert len(await client.history(LOW, 5)) == 2  # of the failed write, too
        async with StoreService(config.store, second).running():
            assert await client.put_samples([new_sample(1, prompt=LOW), new_sample(1, prompt=HIGH)]) == []
            assert len(await client.history(HIGH, 5)) == 1
    client.close()


async def test_draws_are_written_before_the_marks_of_their_step(tmp_path: Path) -> None:
    config = config_of(tmp_path, 2)
    first, second = layout_of(config).stores
    client, sample = connect(layout_of(config), "test"), new_sample(prompt=HIGH)
    async with StoreService(config.store, second).running():
        await client.put_samples([sample])
        with pytest.raises(Exception, match="store at"):
            await client.mark([sample.info.id], "trained", drawn=DRAWN, deadline_s=0.3)
        async with StoreService(config.store, first).running():
            assert [entry.state for entry in await client.journal(0)] == ["generated"]
    client.close()


async def test_a_store_without_samples_of_the_last_steps_knows_that_a_checkpoint_covers_them(tmp_path: Path) -> None:
    config = config_of(tmp_path, 2)
    layout = layout_of(config)
    async with running(layout, config) as client:
        await client.put_samples([new_sample(step, prompt=LOW) for step in range(3)])
        await client.put_samples([new_sample(0, prompt=HIGH)])
        await client.forget_logprobs(3)
    found = [position_of(one.database) for one in layout.stores]
    assert [(one.forgotten, one.end) for one in found if one] == [(3, 3), (3, 3)]
    assert merge.outdated([one for one in found if one]) is None


async def test_folders_cannot_change_places_nor_number(tmp_path: Path) -> None:
    config = config_of(tmp_path, 2)
    layout = layout_of(config)
    async with running(layout, config) as client:
        await client.open_run("run", "{}")
        await client.put_samples([new_sample(prompt=prompt) for prompt in (LOW, HIGH)])
    for shards, words in ((3, "number 1 of 3"), (1, "of one store more than store.shards = 1")):
        other = config_of(tmp_path, shards)
        with pytest.raises(RunMismatch, match=words):
            async with running(layout_of(other), other):
                pass
    places = [one.database for one in layout.stores]
    places[0].rename(tmp_path / "aside")
    places[1].rename(places[0])
    (tmp_path / "aside").rename(places[1])
    with pytest.raises(RunMismatch, match=r"has prompts of other stores than number 0 of 2.*history import"):
        async with running(layout, config):
            pass


async def test_an_empty_folder_cannot_take_the_place_of_another(tmp_path: Path) -> None:
    config = config_of(tmp_path, 2)
    layout = layout_of(config)
    async with running(layout, config) as client:
        await client.open_run("run", "{}")
    layout.stores[0].database.rename(tmp_path / "aside")
    layout.stores[1].database.rename(layout.stores[0].database)
    async with running(layout, config) as client:
        with pytest.raises(RunMismatch, match=r"store\.shard = '1 of 2'"):
            await client.open_run("run", "{}")


async def test_a_process_that_counts_other_stores_is_refused(tmp_path: Path) -> None:
    config = config_of(tmp_path, 2)
    layout = layout_of(config)
    async with running(layout, config):
        alone = StoreClient(layout.store, "with store.shards = 1")
        assert await alone.put_samples([new_sample(prompt=LOW)]) == []
        for call in (alone.put_samples([new_sample(prompt=HIGH)]), alone.history(HIGH, 3), alone.lengths([HIGH], 3)):
            with pytest.raises(RunMismatch, match=r"another store\.shards in its configuration"):
                await call
        alone.close()


def test_every_call_of_a_client_is_answered_by_all_stores() -> None:
    calls = {name for name, value in vars(StoreClient).items() if inspect.isfunction(value) and name[0] != "_"}
    assert calls - vars(ShardedClient).keys() == {
        "journal",
        "ask",
    }  # which asks `read_journal`; which is for a client of one store, see `of`
    spanning = {OpenRun, ForgetLogprobs, GetJournal, GetStoreStats}
    assert {*get_args(ToStore)} - PROMPTS.keys() == spanning
