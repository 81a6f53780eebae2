"""What training computed of each token, in a store: bounded, of the run as it is, and missing nowhere else."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from rhymed.core.config import Config
from rhymed.core.errors import MalformedMessage, StoreFull, UnknownSample
from rhymed.core.messages import EVAL, PutTokenStats, SampleId
from rhymed.core.run.layout import RunLayout
from rhymed_store.browse import Browse
from rhymed_store.client import StoreClient
from rhymed_store.database.tables import Reader
from rhymed_store.database.writes import TABLE, TokenStatsWrites, ready
from rhymed_store.service import StoreService
from rhymed_store.verify import verify
from tests.store.stores import PROMPT, LocalStore, new_sample

LENGTH = 700


def numbers(step: int, length: int = LENGTH) -> NDArray[np.float16]:
    return np.random.default_rng(step).normal(0, 1, (4, length)).astype(np.float16)


def put(local: LocalStore, steps: Sequence[int], limit: int = 1 << 20, *, begins: bool = True) -> None:
    writes = TokenStatsWrites(local.database, limit)
    for step in steps:
        id = SampleId(step, PROMPT, 0)
        message = PutTokenStats(version=step, samples=[id], lengths=[LENGTH], begins=begins)
        entries = ready(message, numbers(step).tobytes(), 1)
        local.do(lambda batch, message=message, entries=entries: writes.put(batch, message, entries))


def kept(local: LocalStore) -> list[int]:
    samples = [SampleId(step, PROMPT, 0) for step in range(12)]
    found = Browse(local.database).token_stats(samples)
    for step, stats in enumerate(found):
        if stats is not None:
            assert stats.version == step
            np.testing.assert_array_equal(stats.values, numbers(step))
    return [step for step, stats in enumerate(found) if stats is not None]


def test_the_oldest_steps_make_room(local: LocalStore) -> None:
    local.put(*[new_sample(step, length=LENGTH) for step in range(12)])
    put(local, range(12), limit=64 << 10)
    there = kept(local)
    assert there == list(range(there[0], 12))
    assert 2 < len(there) < 12
    with local.database.read() as txn:
        assert local.database.used_bytes(txn, TABLE) <= 64 << 10
    put(local, [11], limit=1000)  # does not fit alone
    assert kept(local) == there[:-1]


def test_a_step_that_is_trained_again_removes_its_numbers_and_those_of_later_ones(local: LocalStore) -> None:
    local.put(*[new_sample(step, length=LENGTH) for step in range(6)])
    put(local, range(6))
    put(local, [3])
    assert kept(local) == [0, 1, 2, 3]
    put(local, [2], begins=False)
    assert kept(local) == [0, 1, 2, 3]


def test_what_does_not_fit_together_is_refused(local: LocalStore) -> None:
    local.put(new_sample(0, length=LENGTH))
    other = PutTokenStats(version=0, samples=[SampleId(0, PROMPT, 1)], lengths=[1])
    writes = TokenStatsWrites(local.database, 1 << 20)
    with pytest.raises(UnknownSample, match="was never stored"):
        local.do(lambda batch: writes.put(batch, other, ready(other, bytes(8), 1)))
    short = PutTokenStats(version=0, samples=[SampleId(0, PROMPT, 0)], lengths=[1])
    with pytest.raises(MalformedMessage, match="does not have 1 tokens"):
        local.do(lambda batch: writes.put(batch, short, ready(short, bytes(8), 1)))
    for size, sample, lengths in ((7, 0, [1]), (8, EVAL, [1]), (8, -1, [1]), (8, 0, [1, 0]), (0, 0, [-1])):
        message = PutTokenStats(version=0, samples=[SampleId(sample, PROMPT, 0)], lengths=lengths)
        with pytest.raises(MalformedMessage, match="PutTokenStats: "):
            ready(message, bytes(size), 1)
    assert kept(local) == []


def test_they_are_verified(local: LocalStore) -> None:
    local.put(*[new_sample(step, length=LENGTH) for step in range(2)])
    put(local, range(2))
    with local.database._env.begin(write=True) as txn, txn.cursor(local.database.tables[TABLE]) as cursor:
        cursor.first()
        cursor.put(bytes(cursor.key()), bytes(cursor.value())[:-1])
    local.database.close()
    folder = local.database.folder
    assert [finding[:2] for finding in verify(folder).findings] == [(TABLE, f"sample 0/{PROMPT}/0")]
    local.__init__(folder)  # the fixture closes it


async def test_they_come_over_the_wire(config: Config, where: RunLayout) -> None:
    async with StoreService(config.store, where).running():
        client = StoreClient(where.store, "test")
        await client.put_samples([new_sample(step, length=LENGTH) for step in range(2)])
        for step in range(2):
            await client.put_token_stats(step, {SampleId(step, PROMPT, 0): numbers(step)}, begins=True)
        with pytest.raises(UnknownSample):
            await client.put_token_stats(2, {SampleId(2, PROMPT, 0): numbers(2)}, begins=True)
        client.close()
    with Reader(where.database) as reader:
        first, second = Browse(reader).token_stats([SampleId(step, PROMPT, 0) for step in range(2)])
    assert first is not None
    assert second is not None
    np.testing.assert_array_equal(first.values, numbers(0))
    np.testing.assert_array_equal(second.values, numbers(1))


def test_a_full_store_takes_none(local: LocalStore) -> None:
    local.put(new_sample(0, length=LENGTH))
    message = PutTokenStats(version=0, samples=[SampleId(0, PROMPT, 0)], lengths=[LENGTH], begins=True)
    entries = ready(message, numbers(0).tobytes(), 1)
    writes = TokenStatsWrites(local.database, 1 << 40)
    local.do(lambda batch: setattr(batch, "used_bytes", 63 << 20))
    with pytest.raises(StoreFull):
        local.do(lambda batch: (setattr(batch, "used_bytes", 63 << 20), writes.put(batch, message, entries))[0])
    assert kept(local) == []
