"""How far a store is in its run, and a new store in the middle of one. For folders that no store process has open.

Reads through a child process, so a damaged file is an error here and no crash.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import lmdb

from rhymed.core.messages import EVAL
from rhymed_store.codec.records import journal_state, step_prefix
from rhymed_store.database.child import Unreadable, answer, ask, damaged
from rhymed_store.database.transactions import Batch, Database

LIMIT_S = 300.0  # a child that reads from a disk that does not answer


class Position(NamedTuple):
    """`end` and `forgotten` count training steps."""

    claimed: bool  # a run has opened the store
    id: str  # of that run; empty: unknown, as after an import
    forgotten: int  # steps below this one can only be trained again from a checkpoint
    end: int  # the step after the newest one of which the store has a sample

    def __str__(self) -> str:
        return f"its newest samples are of step {self.end}" if self.end else "it has no samples of training"


def position_of(folder: Path) -> Position | None:
    """None: there is no file, or nothing in it. Raises `StoreDamaged`, `StoreError`. Blocking."""
    file = folder / "data.mdb"
    if not file.exists() or not file.stat().st_size:
        return None
    try:
        found = ask(__name__, folder, LIMIT_S)
    except Unreadable as error:
        raise damaged(folder, str(error)) from None
    return None if found is None else Position(*found)


def _position(folder: Path) -> Position | None:
    """In the child. The journal is as long as the steps that no checkpoint covers."""
    end = 0
    with (
        lmdb.open(str(folder), map_size=0, max_dbs=64, readonly=True, create=False, readahead=False) as env,
        env.begin() as txn,
    ):
        try:
            meta = dict(txn.cursor(env.open_db(b"meta", txn=txn, create=False)))
        except lmdb.NotFoundError:
            return None
        if not meta:
            return None
        for key, value in txn.cursor(env.open_db(b"journal", txn=txn, create=False)):
            if key < step_prefix(EVAL):
                journal_state(value)  # raises `StoreDamaged`
                end = int.from_bytes(key[:4], "big") - int.from_bytes(step_prefix(0), "big") + 1
    forgotten = int(meta.get(b"forgotten", b"0"))
    return Position(b"run" in meta, meta.get(b"id", b"").decode(), forgotten, max(end, forgotten))


def begin_at(folder: Path, map_bytes: int, step: int, id: str) -> None:
    """A new store in an empty folder, of a run that has trained `step` steps. Raises `StoreError`."""
    database = Database(folder, map_bytes)

    def put(batch: Batch) -> None:
        database.put_number(batch.txn, "forgotten", step)
        database.put_number(batch.txn, "begins", step)
        batch.txn.put(b"id", id.encode(), db=database.tables["meta"])

    try:
        if error := database.commit([put])[0]:
            raise error
    finally:
        database.close()


if __name__ == "__main__":
    sys.exit(answer(sys.argv[1], _position))
