"""Beginnings of samples: appended chunk by chunk, cut, never read with a hole."""

from __future__ import annotations

import lmdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rhymed.core.errors import MalformedMessage
from rhymed.core.messages import Done, PutPartials, SampleId
from rhymed_store.client import StoreClient
from rhymed_store.database import partials
from tests.store.stores import OTHER, PROMPT, new_sample

ONE, TWO = SampleId(0, PROMPT, 0), SampleId(0, PROMPT, 1)


async def read(client: StoreClient, *ids: SampleId) -> dict[SampleId, list[int]]:
    return {id: tokens.tolist() for id, tokens in (await client.get_partials(list(ids))).items()}


async def test_beginnings_grow_until_the_sample_is_whole(client: StoreClient) -> None:
    whole, other, later = (new_sample(step, index, length=5).info.id for step, index in ((0, 0), (0, 1), (7, 0)))
    await client.put_partials({whole: (0, [1, 2]), other: (0, [7, 1 << 20, 3]), later: (0, [])})
    await client.put_partials({whole: (2, [3]), other: (3, [5, 1 << 31])})
    assert await read(client, later, whole, SampleId(0, PROMPT, 9)) == {later: [], whole: [1, 2, 3]}
    await client.put_samples([new_sample(0, 0, length=5)])
    await client.put_partials({whole: (0, [1]), later: (0, [6])})
    assert await read(client, whole, later) == {later: [6]}, "what is whole has no beginning any more"
    await client.forget_logprobs(5)
    assert await read(client, other, later) == {later: [6]}
    await client.put_partials({other: (0, [1])})
    assert await read(client, other) == {}, "its step is checkpointed"


async def test_a_part_takes_the_place_of_all_behind_its_start(client: StoreClient) -> None:
    await client.put_partials({ONE: (0, [1, 2, 3]), TWO: (0, [8, 8])})
    await client.put_partials({ONE: (3, [4, 5])})
    await client.put_partials({ONE: (2, [9])})
    assert await read(client, ONE, TWO) == {ONE: [1, 2, 9], TWO: [8, 8]}
    await client.put_partials({ONE: (0, [6])})
    assert await read(client, ONE, TWO) == {ONE: [6], TWO: [8, 8]}
    await client.put_partials({ONE: (1, [])})
    assert await read(client, ONE) == {ONE: [6]}


async def test_a_part_behind_a_hole_is_not_kept_and_reported(client: StoreClient) -> None:
    assert await client.put_partials({ONE: (2, [1])}) == [ONE]
    assert await read(client, ONE) == {}
    assert await client.put_partials({ONE: (0, [1, 2]), TWO: (0, [5])}) == []
    assert await client.put_partials({ONE: (3, [4]), TWO: (1, [6])}) == [ONE]
    assert await read(client, ONE, TWO) == {ONE: [1, 2], TWO: [5, 6]}
    await client.put_samples([new_sample(0, 0, length=5)])
    assert await client.put_partials({ONE: (3, [4])}) == [], "what is whole needs no beginning"


async def test_parts_that_are_not_what_they_say_are_refused(client: StoreClient) -> None:
    for part in ((0, [[1], [2]]), (0, [-1]), (-1, [1]), ((1 << 32) - 1, [1, 2])):
        with pytest.raises(MalformedMessage):
            await client.put_partials({ONE: part})  # type: ignore[dict-item]
    for starts, lengths, complaint in (([0], [3], "bytes"), ([], [2], "starts"), ([0], [2, 0], "lengths")):
        question = PutPartials(samples=[ONE], starts=starts, lengths=lengths)
        with pytest.raises(MalformedMessage, match=complaint):
            await client.ask(question, Done, np.zeros(2, np.uint32), deadline_s=5)
    assert await read(client, ONE) == {}


PART = st.tuples(st.integers(0, 2), st.integers(0, 12), st.lists(st.integers(0, 70_000), max_size=6))


@settings(max_examples=60, deadline=None)
@given(parts=st.lists(PART, max_size=30), damaged=st.integers(0, 40))
def test_what_is_read_is_what_was_put_without_holes(
    tmp_path_factory: pytest.TempPathFactory, parts: list[tuple[int, int, list[int]]], damaged: int
) -> None:
    ids = [ONE, TWO, SampleId(0, OTHER, 0)]
    expected: dict[SampleId, list[int]] = {}
    with lmdb.open(str(tmp_path_factory.mktemp("partials")), map_size=1 << 20, sync=False) as env:
        with env.begin(write=True) as txn, txn.cursor() as cursor:
            for which, start, tokens in parts:
                had = expected.get(ids[which])
                fits = start == 0 or (had is not None and start <= len(had))
                assert partials.put(cursor, ids[which], start, np.array(tokens, "<u4").tobytes()) == fits
                if fits:
                    expected[ids[which]] = (had or [])[:start] + tokens
        with env.begin(buffers=True) as txn, txn.cursor() as cursor:
            found = {id: partials.get(cursor, id) for id in ids}
            keys = [bytes(key) for key, _ in cursor]
        assert {id: tokens.tolist() for id, tokens in found.items() if tokens is not None} == expected
        if damaged < len(keys):
            with env.begin(write=True) as txn, txn.cursor() as cursor:
                value = txn.get(keys[damaged])
                txn.put(keys[damaged], value[:-1] + bytes([value[-1] ^ 1]))
                for id in ids:
                    tokens = partials.get(cursor, id)
                    had = expected.get(id, [])
                    assert tokens is None or tokens.tolist() == had[: len(tokens)]


async def test_many_parts_take_little_room(client: StoreClient) -> None:
    tokens = np.random.default_rng(0).integers(0, 49_152, 4096).astype(np.uint32)
    empty = (await client.stats()).used_bytes
    for start in range(0, 4096, 32):
        await client.put_partials({ONE: (start, tokens[start : start + 32])})
    np.testing.assert_array_equal((await client.get_partials([ONE]))[ONE], tokens)
    assert (await client.stats()).used_bytes - empty < 3 * 2 * 4096  # two bytes a token, keys, half-full pages
