"""How far a store is in its run, and a new store in the middle of one. For folders that no store process has open.

Reads through a child process, so a damaged file is an error here and no crash.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from rhymed.core.errors import StoreDamaged
from rhymed.core.messages import EVAL
from rhymed_store.codec.records import journal_state, step_prefix
from rhymed_store.database.probe import damaged
from rhymed_store.database.transactions import Batch, Database
from rhymed_store.integrity.isolated import Gap, IsolatedReader, Unreadable


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
        return _position(folder)
    except (Unreadable, ValueError) as error:  # ValueError: of `meta`, whose values are text
        raise damaged(folder, str(error)) from None
    except StoreDamaged as error:
        raise error if str(folder) in str(error) else damaged(folder, str(error)) from None


def _position(folder: Path) -> Position | None:
    meta, end = {}, 0
    with IsolatedReader(folder) as reader:
        if not reader.count("meta"):
            return None
        for entry in reader.entries("meta"):
            if isinstance(entry, Gap):
                raise damaged(folder, entry.why)
            meta[bytes(entry[0])] = bytes(entry[1])
        for entry in reader.entries("journal"):
            if isinstance(entry, Gap):
                raise damaged(folder, entry.why)
            if entry[0] < step_prefix(EVAL):
                journal_state(entry[1])  # raises `StoreDamaged`
                end = int.from_bytes(entry[0][:4], "big") - int.from_bytes(step_prefix(0), "big") + 1
    forgotten = int(meta.get(b"forgotten", b"0"))
    end = max(end, forgotten)
    return Position(b"run" in meta, meta.get(b"id", b"").decode(), forgotten, end)


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
