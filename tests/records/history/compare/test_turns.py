"""What an audit finds in samples in turns: good ones, and ones that no store takes, written past its checks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest

from rhymed.core.messages import Answer, Fork, SampleId
from rhymed.records.history.compare.audit import turn_faults
from rhymed.records.history.folder import open_folder
from rhymed_store.codec import records, turns
from rhymed_store.codec.turns import Entry, Finished
from tests.records.history.folders import APPLES
from tests.records.history.sessions import GOT, RAISED, write_sessions


@pytest.fixture
def agents(make_run: Callable[..., Path]) -> Path:
    """Its last sample has no turns."""
    folder = make_run("agents", [(0, APPLES, 9, [40, 41], 1.0)])
    write_sessions(folder)
    return folder


def found_in(folder: Path, *, acts: bool = True) -> dict[SampleId, list[str]]:
    with open_folder(folder) as run:
        left = run.browse.in_progress()
        responses = run.browse.responses(APPLES)
    faults = {one.info.id: list(turn_faults(one, acts=acts, unfinished=left)) for one in responses}
    return {id: faults for id, faults in faults.items() if faults}


def write(folder: Path, table: bytes, key: bytes, content: Entry | Finished) -> None:
    with lmdb.open(str(folder / "store"), max_dbs=32) as env, env.begin(write=True) as txn:
        txn.put(key, turns.pack(key, content), db=env.open_db(table, txn=txn))


def test_missing_turns_are_a_fault(agents: Path) -> None:
    lost = f"sample 0/{APPLES}/9 has no turns, though the run has an environment: whose its tokens are is lost"
    assert found_in(agents) == {SampleId(0, APPLES, 9): [lost]}


def test_a_run_without_an_environment_has_no_such_faults(run: Path) -> None:
    assert found_in(run, acts=False) == {}


def test_turns_and_rows_that_do_not_fit_and_what_is_left_over_are_named(agents: Path) -> None:
    write(agents, b"sessions", records.sample_key(GOT), Finished([4, 2, 4], None, []))
    forks = (Fork(start=3, row=0, shared=2),)
    write(agents, b"sessions", records.sample_key(RAISED), Finished([2, 3, 1], None, [], forks))
    key = turns.answer_key(records.journal_key(RAISED), 0)
    write(agents, b"turns", key, Entry(answer=Answer(length=0)))
    faults = found_in(agents)
    assert "turns [4, 2, 4] that are not its 9 tokens" in faults[GOT][0]
    assert "a row that begins within a turn, at token 3" in faults[RAISED][0]
    assert faults[RAISED][1] == f"sample {RAISED} is complete, and the store has turns of it that are in progress"
