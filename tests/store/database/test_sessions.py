"""Answers and turns at rest, when one of them cannot be read."""

from __future__ import annotations

from rhymed_store.client import StoreClient
from rhymed_store.codec import records, turns
from rhymed_store.service import StoreService
from rhymed_store.sessions import begin_calls, get_session, put_turns
from tests.store.test_sessions import ONE, TWO, answer, begin, new_turn


def damage(service: StoreService, key: bytes) -> None:
    database = service.database
    with database._env.begin(write=True) as txn:
        value = bytes(txn.get(key, db=database.tables["turns"]))
        txn.put(key, value[:-1] + bytes([value[-1] ^ 1]), db=database.tables["turns"])


async def written(client: StoreClient) -> None:
    for sample in (ONE, TWO):
        await begin(client, sample)
        await answer(client, sample, 1, [4])
        await put_turns(client, [new_turn(sample, 1, [5])])
        await begin_calls(client, sample, 0, "a")
        await begin_calls(client, sample, 1, "a")


async def test_what_came_after_an_answer_that_cannot_be_read_goes_with_it(
    service: StoreService, client: StoreClient
) -> None:
    """A turn that was written after other tokens would be trained as if it had been written after these."""
    await written(client)
    damage(service, turns.answer_key(records.journal_key(ONE), 1))
    assert (await get_session(client, ONE)).response.tolist() == [1, 2, 70_000]
    await answer(client, ONE, 1, [6, 6])
    stored = await get_session(client, ONE)
    assert stored.response.tolist() == [1, 2, 70_000, 6, 6]
    assert not stored.session.acts
    await put_turns(client, [new_turn(ONE, 1, [7])])
    stored = await get_session(client, ONE)
    assert stored.response.tolist() == [1, 2, 70_000, 6, 6, 7]
    assert not stored.session.begun, "its calls were those of another turn"
    assert not await begin_calls(client, ONE, 0, "b"), "those of the turn before it may have been made"
    assert (await get_session(client, TWO)).response.tolist() == [1, 2, 70_000, 4, 5], "another sample"


async def test_calls_of_a_turn_that_is_written_again_may_have_been_made(
    service: StoreService, client: StoreClient
) -> None:
    """It is written again with the same noise."""
    await written(client)
    damage(service, turns.turn_key(records.journal_key(ONE), 0))
    await put_turns(client, [new_turn(ONE, 0, [1, 2, 70_000])])
    stored = await get_session(client, ONE)
    assert stored.response.tolist() == [1, 2, 70_000]
    assert stored.session.begun
