"""What trained steps drew from the plan: kept with their marks, and known after the journal's lines are deleted."""

from __future__ import annotations

from pathlib import Path

import lmdb
import pytest

from rhymed.core.errors import StoreDamaged
from rhymed.core.messages import Cursor, Drawn, ForgetLogprobs, GetJournal, MarkSamples, PutScores, SampleId, Score
from rhymed_store.browse import Browse
from rhymed_store.codec import records
from rhymed_store.database.tables import Reader
from rhymed_store.verify import verify
from tests.store.stores import PROMPT, LocalStore, new_sample


def drawn(step: int, refilled: int = 2) -> Drawn:
    after = Cursor(position=10 * step + 8, deferred=[PROMPT])
    return Drawn(
        step=step, start=Cursor(position=10 * step), refill=Cursor(position=10 * step + 4), refilled=refilled,
        after=after, reserved=[(step + 1, after)],
    )  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    local = LocalStore(tmp_path / "store")
    for step in range(4):
        train(local, step)
    return local


def train(local: LocalStore, step: int) -> None:
    local.put(new_sample(step))
    id = SampleId(step, PROMPT, 0)
    local.do(lambda batch: local.writes.put_scores(batch, PutScores(scores=[Score(id=id, reward=1.0)])))
    mark(local, step, [id], drawn(step))


def mark(local: LocalStore, step: int, ids: list[SampleId], record: Drawn | None) -> None:
    marks = MarkSamples(samples=ids, state="trained", drawn=record)
    local.do(lambda batch: local.writes.mark(batch, marks))


def found(local: LocalStore) -> list[Drawn]:
    return local.reads.journal(GetJournal(from_step=0)).drawn


def test_every_step_is_found_in_its_order(store: LocalStore) -> None:
    assert found(store) == [drawn(step) for step in range(4)]
    mark(store, 2, [], drawn(2, refilled=5))  # without any sample, and again
    assert found(store)[2].refilled == 5


def test_the_last_step_that_a_checkpoint_covers_is_found_and_all_are_kept(store: LocalStore, tmp_path: Path) -> None:
    store.do(lambda batch: store.writes.forget_logprobs(batch, ForgetLogprobs(below_step=3)))
    assert found(store) == [drawn(2), drawn(3)]
    store.database.close()
    with Reader(tmp_path / "store") as reader:
        assert Browse(reader).drawn_steps() == [drawn(step) for step in range(4)]


def test_they_are_verified_and_one_that_is_damaged_is_named(store: LocalStore, tmp_path: Path) -> None:
    store.database.close()
    folder = tmp_path / "store"
    assert verify(folder).findings == []
    with lmdb.open(str(folder), max_dbs=20) as env, env.begin(write=True) as txn:
        meta = env.open_db(b"meta", txn=txn)
        value = bytearray(txn.get(records.drawn_key(1), db=meta))
        value[-3] ^= 1
        txn.put(records.drawn_key(1), bytes(value), db=meta)
    (finding,) = verify(folder).findings
    assert "the prompts of step 1" in str(finding)
    with Reader(folder) as reader, pytest.raises(StoreDamaged, match="the prompts of step 1"):
        Browse(reader).drawn_steps()
