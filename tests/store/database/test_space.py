"""A store without room: it refuses what is new, in words, does the rest, and goes on when there is room again."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rhymed.core.config import Config
from rhymed.core.errors import StoreFull, Unusable
from rhymed.core.messages import SampleId, Score
from rhymed.core.run.layout import layout_of
from rhymed_store.client import NewSample, StoreClient
from rhymed_store.service import StoreService
from rhymed_store.verify import verify
from tests.disks import fill, small_disk
from tests.store.stores import PROMPT, LocalStore, new_sample, start_process


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 24 MiB of our own."""
    with small_disk(tmp_path / "disk", "24m") as mount:
        yield mount


async def put_until_full(client: StoreClient, acknowledged: list[NewSample], match: str) -> None:
    with pytest.raises(StoreFull, match=match):  # noqa: PT012
        for step in range(len(acknowledged), 10_000):
            sample = new_sample(step, length=4000)
            await client.put_samples([sample])
            acknowledged.append(sample)


async def check(client: StoreClient, acknowledged: list[NewSample]) -> None:
    found = await client.get_samples([sample.info.id for sample in acknowledged])
    for sample, stored in zip(acknowledged, found, strict=True):
        np.testing.assert_array_equal(stored.tokens, sample.tokens)


async def put_when_it_goes(client: StoreClient, sample: NewSample) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                await client.put_samples([sample])
            except StoreFull:
                await asyncio.sleep(0.05)
            else:
                return


async def test_a_full_disk_holds_new_data_back_and_nothing_else(disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = Config.model_validate({"run": {"folder": str(disk)}, "store": {"map_gib": 1.0}})
    where = layout_of(config)
    acknowledged: list[NewSample] = []
    async with StoreService(config.store, where).running():
        client = StoreClient(where.store, "test")
        assert (await client.stats()).full == ""
        await client.put_samples([new_sample(20_000, 0)])
        filler = fill(disk, leave=3 << 20)
        with caplog.at_level(logging.ERROR, "rhymed_store.service"):
            await put_until_full(client, acknowledged, "disk under .* is full; make room")
        assert acknowledged
        assert "is full" in caplog.text
        assert "is full" in (await client.stats()).full
        filler.write_bytes(b"")
        fill(disk)  # to the last byte: now not even what the store would still have found
        assert shutil.disk_usage(disk).free == 0
        with pytest.raises(StoreFull):
            await client.put_partials({SampleId(20_001, PROMPT, 0): (0, [1])})
        for sample in acknowledged:  # each in a transaction of its own
            await client.put_scores([Score(id=sample.info.id, reward=0.5)])
            await client.mark([sample.info.id], "trained")
        await check(client, acknowledged)

        await client.forget_logprobs(len(acknowledged))  # makes room inside of the file
        before = len(acknowledged)
        await put_until_full(client, acknowledged, "is full")
        assert len(acknowledged) > before, "what was forgotten is room"
        filler.unlink()
        fresh = new_sample(30_000, length=4000)
        await put_when_it_goes(client, fresh)
        assert (await client.stats()).full == ""
        await check(client, [*acknowledged, fresh])
        client.close()
    assert verify(where.database).findings == []


async def test_a_store_starts_on_a_full_disk_and_what_it_acknowledged_is_there(disk: Path) -> None:
    config = Config.model_validate({"run": {"folder": str(disk)}, "store": {"map_gib": 1.0, "durability": "async"}})
    where = layout_of(config)
    acknowledged: list[NewSample] = []
    process = start_process(config)
    client = StoreClient(where.store, "test")
    try:
        fill(disk, leave=14 << 20)
        await put_until_full(client, acknowledged, "is full")
        fill(disk)
    finally:
        process.kill()
        process.wait(10)
        client.close()
    async with StoreService(config.store, where).running():
        client = StoreClient(where.store, "again")
        await check(client, acknowledged)
        await client.put_scores([Score(id=acknowledged[0].info.id, reward=0.5)])
        with pytest.raises(StoreFull):
            await client.put_samples([new_sample(9999, length=4000)])
        os.unlink(disk / "filler")
        await put_when_it_goes(client, new_sample(9999, length=4000))
        client.close()
    assert verify(where.database).findings == []


def test_a_disk_that_is_full_before_there_is_a_store_is_named(disk: Path) -> None:
    fill(disk)
    for left in range(4):  # a page more for the files at each turn
        with pytest.raises(StoreFull, match=r"the disk under .* is full; make room and start it again"):
            LocalStore(disk / f"store-{left}")
        with (disk / "filler").open("r+b") as filler:
            filler.truncate(disk.joinpath("filler").stat().st_size - 4096 * left)


def test_a_database_that_gives_up_ends_and_is_there_again(tmp_path: Path) -> None:
    lmdb = pytest.importorskip("lmdb")
    local = LocalStore(tmp_path / "store")
    local.put(new_sample(0))

    def fail(batch: object) -> None:
        raise lmdb.PanicError("a header that was written half")

    with pytest.raises(Unusable, match="has to be opened again"):
        local.do(fail)
    local.database.close()
    assert (tmp_path / "store" / "writer.lock").read_bytes() == b"open", "so the next start looks at every page"
    local.__init__(tmp_path / "store")  # type: ignore[misc]
    assert local.database.stats().samples == 1
    local.database.close()
