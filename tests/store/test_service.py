"""The store as others see it: real sockets, real LMDB, and a real process that is killed."""

from __future__ import annotations

import asyncio
import re
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rhymed.core.config import Config
from rhymed.core.errors import (
    DeadlineExceeded,
    FilesLost,
    MalformedMessage,
    PeerGone,
    RunMismatch,
    StoreFull,
    UnknownSample,
    Unusable,
    WireError,
)
from rhymed.core.messages import EVAL, PutSamples, SampleId, SampleInfo, Score, ToStore
from rhymed.core.run.layout import RunLayout, layout_of
from rhymed.core.wire import sockets
from rhymed.inputs.rows import prompt_id
from rhymed_store import client as store_client
from rhymed_store import service
from rhymed_store.client import NewSample, StoreClient
from rhymed_store.database.commit import Writer
from rhymed_store.database.transactions import Batch
from rhymed_store.service import StoreService
from tests.store.stores import OTHER, PROMPT, new_sample, start_process


async def test_all_calls(client: StoreClient) -> None:
    await client.open_run("run", "f")
    rows = [{"prompt": "1 + 1 = ?", "answer": 2}, {"prompt": [{"role": "user", "content": "ä"}]}]
    prompts = await client.put_prompts(rows)
    assert prompts == [prompt_id(row) for row in rows]
    await client.put_prompts(rows)
    assert await client.get_prompts(prompts[::-1]) == rows[::-1]

    put = [new_sample(step, index, length=100 * index) for step in (0, 1) for index in range(3)]
    await client.put_samples(put)
    got = await client.get_samples([sample.info.id for sample in put], logprobs=True, prompt_tokens=True)
    for sample, stored in zip(put, got, strict=True):
        assert stored.info == sample.info
        assert stored.logprobs is not None
        assert stored.prompt_tokens is not None
        assert stored.tokens.dtype == np.uint32
        np.testing.assert_array_equal(stored.tokens, sample.tokens)
        np.testing.assert_array_equal(stored.logprobs, sample.logprobs)
        np.testing.assert_array_equal(stored.prompt_tokens, sample.prompt_tokens)

    first = put[0].info.id
    await client.put_scores([Score(id=first, reward=0.1)])
    await client.mark([first], "trained")
    await client.mark([put[1].info.id], "dropped", "no answer")
    journal = (await client.journal(0)).entries
    assert [(entry.state, entry.reason) for entry in journal[:3]] == [
        ("trained", ""),
        ("dropped", "no answer"),
        ("generated", ""),
    ]
    earlier = await client.history(PROMPT, 2, limit=4)
    assert [(stored.info.id.step, stored.info.id.index) for stored in earlier] == [(1, 0), (1, 1), (1, 2), (0, 0)]
    assert earlier[-1].info.reward == 0.1
    assert earlier[0].logprobs is None
    found = await client.lengths([PROMPT, OTHER], 1)
    assert {prompt: row.lengths for prompt, row in found.items()} == {PROMPT: [(0, 0), (0, 100), (0, 200)], OTHER: []}
    await client.forget_logprobs(1)
    assert [entry.id.step for entry in (await client.journal(0)).entries] == [1, 1, 1]
    stats = await client.stats()
    assert (stats.samples, stats.tokens, stats.prompts, stats.map_bytes) == (6, 600, 2, 128 << 20)
    assert stats.commits > 0
    assert await client.get_samples([]) == []


async def test_floors_come_with_the_log_probs_of_the_samples_that_have_them(client: StoreClient) -> None:
    floors = np.array([-np.inf, -2, -3, -4, -5], np.float32)
    plain, floored, evaluated = new_sample(0, 0, length=4), new_sample(0, 1, length=5), new_sample(EVAL, 0, length=5)
    put = [plain, replace(floored, floors=floors), replace(evaluated, floors=floors)]
    await client.put_samples(put)
    ids = [sample.info.id for sample in put]
    await client.put_scores([Score(id=id, reward=1.0) for id in ids[:2]])
    one, two = await client.get_samples(ids[:2], logprobs=True, prompt_tokens=True)
    assert one.floors is None
    np.testing.assert_array_equal(two.floors, floors)
    for given, stored in ((plain, one), (floored, two)):
        np.testing.assert_array_equal(stored.logprobs, given.logprobs)
        np.testing.assert_array_equal(stored.prompt_tokens, given.prompt_tokens)
    (bare,) = await client.get_samples(ids[1:2])
    assert bare.floors is None
    for wrong in (floors[:4], np.full(5, np.nan, np.float32)):
        with pytest.raises(MalformedMessage, match="floors of shape"):
            await client.put_samples([replace(new_sample(0, 2, length=5), floors=wrong)])


async def test_the_parts_of_a_reward_come_with_the_log_probs(client: StoreClient) -> None:
    put = [new_sample(0, index, length=4) for index in range(2)]
    await client.put_samples(put)
    ids = [sample.info.id for sample in put]
    await client.put_scores(
        [Score(id=ids[0], reward=1.5, parts={"math": 1.0, "format": 0.5}), Score(id=ids[1], reward=1)]
    )
    assert [stored.parts for stored in await client.get_samples(ids)] == [{}, {}]
    reported = [stored.parts for stored in await client.get_samples(ids, logprobs=True)]
    assert reported == [{"math": 1.0, "format": 0.5}, {}]


async def test_the_rows_of_a_dataset_are_made_off_the_loop_in_order(
    client: StoreClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    makers = set()

    def made_by(row: dict[str, object]) -> str:
        makers.add(threading.get_ident())
        return prompt_id(row)

    monkeypatch.setattr(store_client, "prompt_id", made_by)
    rows = [{"prompt": f"{number} + 1 = ?"} for number in range(store_client.ROWS_A_MESSAGE + 10)]
    prompts = await client.put_prompts(rows)
    assert prompts == [prompt_id(row) for row in rows]
    assert makers
    assert threading.get_ident() not in makers
    assert await client.get_prompts(prompts[-3:]) == rows[-3:]


async def test_the_journal_tells_what_it_has_let_go(client: StoreClient) -> None:
    await client.put_samples([new_sample(2, 0)])
    assert (await client.journal(0)).forgotten == 0
    await client.forget_logprobs(2)
    assert (await client.journal(0)).forgotten == 2
    await client.forget_logprobs(2**53)  # more than any checkpoint can hold
    assert (await client.journal(0)).forgotten == 3


async def test_errors_arrive_by_name(client: StoreClient) -> None:
    await client.open_run("run", "f")
    with pytest.raises(RunMismatch, match=r"'run'.*'other'"):
        await client.open_run("other", "f")
    with pytest.raises(UnknownSample, match=re.escape(f"7/{PROMPT}/1")):
        await client.get_samples([SampleId(7, PROMPT, 1)])
    with pytest.raises(UnknownSample, match=OTHER):
        await client.get_prompts([OTHER])
    with pytest.raises(MalformedMessage, match="16 lower-case hex"):
        await client.history("nonsense", 1)
    with pytest.raises(MalformedMessage, match="finite"):
        await client.put_scores([Score(id=SampleId(0, PROMPT, 0), error="broken")])


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"tokens": [1, 2]}, "arrays of"),
        ({"logprobs": [0.0]}, "arrays of"),
        ({"prompt_tokens": []}, "arrays of"),
        ({"tokens": [-1] * 50}, "ids outside"),
        ({"tokens": [1 << 40] * 50}, "ids outside"),
        ({"tokens": [0.5] * 50}, "integers expected"),
        ({"tokens": [[1] * 50]}, "integers expected"),
    ],
)
async def test_the_client_names_the_sample_whose_arrays_are_wrong(
    client: StoreClient, change: dict[str, object], complaint: str
) -> None:
    good = new_sample(index=4)
    arrays = {"prompt_tokens": good.prompt_tokens, "tokens": good.tokens, "logprobs": good.logprobs} | change
    with pytest.raises(MalformedMessage, match=f"{good.info.id}.*{complaint}"):
        await client.put_samples([NewSample(good.info, **arrays)])  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [np.ones(49, bool), np.ones(50, np.uint8), np.ones((50, 1), bool)])
async def test_the_client_names_the_sample_whose_accepted_drafts_are_wrong(client: StoreClient, wrong: Any) -> None:
    with pytest.raises(MalformedMessage, match=rf"{new_sample().info.id}: drafted is .*one bool for each of 50"):
        await client.put_samples([new_sample(0, 1), replace(new_sample(), drafted=wrong)])
    assert await client.history(PROMPT, 1) == []


async def test_the_door_refuses_what_does_not_fit_together(service: StoreService, where: RunLayout) -> None:
    link = sockets.Client(where.store, "raw", peer="store", accepts=ToStore)
    sample = SampleId(0, PROMPT, 0)

    async def put(
        frames: list[bytes], length: int = 2, versions: Any = ((0, 2),), drafted: tuple[bool, ...] = ()
    ) -> None:
        info = SampleInfo(id=sample, prompt_length=1, length=length, finish_reason="stop", versions=list(versions))
        await link.request(PutSamples(samples=[info], drafted=list(drafted)), *frames)

    for frames in ([], [bytes(4), bytes(8)], [bytes(4), bytes(8), bytes(4)], [bytes(4), bytes(9), bytes(8)]):
        with pytest.raises(MalformedMessage, match="PutSamples"):
            await put(frames)
    fit = [bytes(4), bytes(8), bytes(8)]
    for frames, drafted in (
        (fit, (True,)),
        ([*fit, b"\0"], ()),
        ([*fit, b"\0"], (False,)),
        ([*fit, b"\0"], (True, True)),
        ([*fit, b"\0\0"], (True,)),
        ([*fit, b""], (True,)),
        ([*fit, b"\0", b""], (True,)),
    ):
        with pytest.raises(MalformedMessage, match=r"PutSamples|arrays"):
            await put(frames, drafted=drafted)
    for versions in ((), ((0, 3),), ((0, 3), (1, -1)), ((1 << 40, 2),)):
        with pytest.raises(MalformedMessage, match="version"):
            await put([bytes(4), bytes(8), bytes(8)], versions=versions)
    with pytest.raises(MalformedMessage, match="length"):
        await put([bytes(4), b"", b""], length=-1)
    link.close()


async def test_many_clients_share_commits(service: StoreService, where: RunLayout) -> None:
    clients = [StoreClient(where.store, f"client-{number}") for number in range(8)]

    async def write(number: int) -> None:
        for step in range(10):
            await asyncio.gather(*(clients[number].put_samples([new_sample(step, 8 * number + i)]) for i in range(8)))

    try:
        await asyncio.gather(*map(write, range(8)))
        stats = await clients[0].stats()
        assert stats.samples == 640
        assert stats.commits < 640
        found = await clients[0].history(PROMPT, 100, limit=1000)
        assert len({stored.info.id for stored in found}) == 640
    finally:
        for client in clients:
            client.close()


async def test_what_waits_shares_one_transaction() -> None:
    groups: list[int] = []
    go = threading.Event()

    def commit(operations: object) -> list[Exception | None]:
        assert isinstance(operations, list)
        go.wait(10)
        groups.append(len(operations))
        return [None] * len(operations)

    def nothing(batch: Batch) -> None:
        pass

    writer = Writer(commit)
    first = asyncio.create_task(writer.write(nothing))
    rest = [asyncio.create_task(writer.write(nothing)) for _ in range(50)]
    await asyncio.sleep(0.05)
    assert not first.done()  # nothing is acknowledged before its commit
    go.set()
    await asyncio.gather(first, *rest)
    assert sum(groups) == 51
    assert len(groups) <= 2
    await asyncio.to_thread(writer.close)


async def test_a_full_store_says_so_and_goes_on_reading(tmp_path: Path) -> None:
    config = Config.model_validate({"run": {"folder": str(tmp_path)}, "store": {"map_gib": 0.004}})
    where = layout_of(config)
    async with StoreService(config.store, where).running():
        client = StoreClient(where.store, "test")
        stored = 0
        with pytest.raises(StoreFull, match=r"raise store\.map_gib"):  # noqa: PT012
            while True:
                await client.put_samples([new_sample(stored, length=4000)])
                stored += 1
        assert stored > 0
        assert len(await client.history(PROMPT, stored, limit=1000)) == stored
        await client.put_scores([Score(id=SampleId(0, PROMPT, 0), reward=1.0)])
        client.close()


async def test_beginnings_that_do_not_fit_end_no_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rhymed_store.service.FULL_S", 0.05)
    config = Config.model_validate({"run": {"folder": str(tmp_path)}, "store": {"map_gib": 0.004}})
    where = layout_of(config)
    running = asyncio.create_task(StoreService(config.store, where).run())
    client = StoreClient(where.store, "test")
    tokens = np.arange(100_000, dtype=np.uint32)
    with pytest.raises(StoreFull):  # noqa: PT012
        for index in range(10_000):
            await client.put_partials({SampleId(0, PROMPT, index): (0, tokens)})
    assert (await client.stats()).full == "", "nobody has to have them"
    await asyncio.sleep(0.2)
    assert not running.done()
    with pytest.raises(StoreFull):  # noqa: PT012
        for step in range(10_000):
            await client.put_samples([new_sample(step, length=4000)])
    with pytest.raises(StoreFull, match=r"raise store\.map_gib"):
        await asyncio.wait_for(running, 60)
    client.close()


async def test_there_is_room_again_when_what_was_refused_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, write = set[str](), Writer.write

    async def crowded(self: Writer, operation: Any, size: int = 0) -> None:
        if ("samples" if size else "scores") in full:
            raise StoreFull("the disk is full")
        await write(self, operation, size)

    monkeypatch.setattr(Writer, "write", crowded)
    config = Config.model_validate({"run": {"folder": str(tmp_path)}})
    where = layout_of(config)
    scores = [Score(id=SampleId(0, PROMPT, 0), reward=1.0)]
    async with StoreService(config.store, where).running():
        client = StoreClient(where.store, "test")
        await client.put_samples([new_sample(0)])
        for kinds, again in (({"scores"}, {"scores"}), ({"scores", "samples"}, {"scores", "samples"})):
            full |= kinds
            for kind in sorted(kinds):
                with pytest.raises(StoreFull):
                    await (client.put_scores(scores) if kind == "scores" else client.put_samples([new_sample(1)]))
            full.clear()
            for kind in sorted(again, reverse=True):
                assert (await client.stats()).full == "the disk is full"
                await (client.put_scores(scores) if kind == "scores" else client.put_samples([new_sample(1)]))
            assert (await client.stats()).full == ""
        client.close()


async def test_a_store_that_stays_full_ends_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rhymed_store.service.FULL_S", 0.05)
    config = Config.model_validate({"run": {"folder": str(tmp_path)}, "store": {"map_gib": 0.004}})
    where = layout_of(config)
    client = StoreClient(where.store, "test")
    running = asyncio.create_task(StoreService(config.store, where).run())
    with pytest.raises(StoreFull):  # noqa: PT012
        for step in range(10_000):
            await client.put_samples([new_sample(step, length=4000)])
    with pytest.raises(StoreFull, match=r"raise store\.map_gib"):
        await asyncio.wait_for(running, 60)
    client.close()


@pytest.mark.parametrize("durability", ["sync", "async"])
async def test_acknowledged_samples_outlive_a_kill(tmp_path: Path, durability: str) -> None:
    config = Config.model_validate(
        {"run": {"folder": str(tmp_path)}, "store": {"map_gib": 0.25, "durability": durability}}
    )
    where = layout_of(config)
    process = start_process(config)
    client = StoreClient(where.store, "test")
    acknowledged: list[NewSample] = []

    async def write(index: int) -> None:
        for step in range(100_000):
            sample = new_sample(step, index, length=500)
            try:
                await client.put_samples([sample], deadline_s=2)
            except DeadlineExceeded:  # a slow disk, as long as it lives
                if process.returncode is not None:
                    raise
            else:
                acknowledged.append(sample)

    try:
        await client.stats()  # it is up
        writers = [asyncio.create_task(write(index)) for index in range(16)]
        while len(acknowledged) < 300:
            await asyncio.sleep(0.01)
        process.kill()
        await asyncio.to_thread(process.wait, 60)
        outcomes = await asyncio.gather(*writers, return_exceptions=True)
        assert all(isinstance(outcome, WireError) for outcome in outcomes)
    finally:
        process.kill()
        process.wait(60)
        client.close()
    async with StoreService(config.store, where).running():
        client = StoreClient(where.store, "again")
        found = await client.get_samples([sample.info.id for sample in acknowledged], logprobs=True)
        for sample, stored in zip(acknowledged, found, strict=True):
            np.testing.assert_array_equal(stored.tokens, sample.tokens)
            np.testing.assert_array_equal(stored.logprobs, sample.logprobs)
        assert len((await client.journal(0)).entries) >= len(acknowledged)
        client.close()


async def test_a_store_that_is_not_there_is_a_deadline(where: RunLayout) -> None:
    client = StoreClient(where.store, "test")
    with pytest.raises(DeadlineExceeded, match="GetStoreStats"):
        await client.stats(deadline_s=0.05)
    client.close()


async def test_a_store_whose_file_is_gone_ends_although_nobody_writes(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "LOOK_S", 0.02)
    store = StoreService(config.store, layout_of(config))
    running = asyncio.create_task(store.run())
    async with asyncio.timeout(60):
        await store.opened.wait()
        shutil.rmtree(layout_of(config).database)
        with pytest.raises(FilesLost, match="was removed, moved or replaced"):
            await running


async def test_what_a_removed_file_held_is_saved_before_the_store_ends(
    config: Config, where: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "LOOK_S", 0.02)
    where.config.parent.mkdir(parents=True, exist_ok=True)
    where.config.write_text("{}")
    store = StoreService(config.store, where)
    running = asyncio.create_task(store.run())
    async with asyncio.timeout(60):
        await store.opened.wait()
        client = StoreClient(where.store, "test")
        sample = new_sample()
        await client.put_samples([sample])
        client.close()
        shutil.rmtree(where.database)
        with pytest.raises(FilesLost, match=r"held is saved: move .*store\.saved-1/data\.mdb to .*store/data\.mdb"):
            await running
    where.database.mkdir()
    (where.folder / "store.saved-1" / "data.mdb").rename(where.database / "data.mdb")
    async with StoreService(config.store, where).running():
        client = StoreClient(where.store, "test")
        (found,) = await client.get_samples([sample.info.id])
        client.close()
    np.testing.assert_array_equal(found.tokens, sample.tokens)


async def test_callers_wait_for_a_store_that_has_lost_its_file(config: Config, where: RunLayout) -> None:
    """They would end the run before the store has saved what it holds."""
    store = StoreService(config.store, where)
    running = asyncio.create_task(store.run())
    async with asyncio.timeout(60):
        await store.opened.wait()
        client = StoreClient(where.store, "test")
        (where.database / "data.mdb").unlink()
        with pytest.raises(PeerGone, match=r"the store ends: .* was removed, moved or replaced"):
            await client.put_samples([new_sample()])
        client.close()
        with pytest.raises(FilesLost):
            await running


async def test_a_run_that_has_worked_gets_no_empty_store(config: Config) -> None:
    """Which a process that is restarted would make in the place of one that was removed."""
    layout = layout_of(config)
    layout.folder.mkdir(parents=True, exist_ok=True)
    layout.metrics.write_text('{"step": 0}\n')
    with pytest.raises(FilesLost, match="missing or empty, but this run has worked"):
        async with StoreService(config.store, layout).running():
            raise AssertionError("it was opened")
    assert not layout.database.exists()


@pytest.mark.parametrize("name", ["lock.mdb", "writer.lock"])
async def test_a_store_whose_lock_is_gone_is_opened_again(
    config: Config, where: RunLayout, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """By its next process: a second store could open the folder, or a reader would not be seen."""
    monkeypatch.setattr(service, "LOOK_S", 0.02)
    store = StoreService(config.store, where)
    running = asyncio.create_task(store.run())
    async with asyncio.timeout(60):
        await store.opened.wait()
        (where.database / name).unlink()
        with pytest.raises(Unusable, match=r"a lock in .* was removed or replaced"):
            await running
    async with StoreService(config.store, where).running():
        assert (where.database / name).exists()
