"""The database of a run as its one writer has it: transactions of many operations. With `database`, all of LMDB.

Invariants: one writer (a lock on the folder); an operation happens wholly or not at all; the map's last part is kept
back from new data, so that in a full store scores, marks and the forgetting that makes room work on. What the
operations and the questions are is in `writes` and `reads`; knows neither sockets nor the event loop.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import lmdb

from rhymed import errors
from rhymed.messages import StoreStats
from rhymed_store.database import TABLES, Database, wrong_schema
from rhymed_store.records import SCHEMA

RESERVE = 1 / 16  # of the map, for all but new data


@dataclass
class Batch:
    """One write transaction on its way."""

    txn: Any
    used_bytes: int  # of the map: measured when it began, then estimated
    tokens: int = 0  # response tokens added so far


Operation: TypeAlias = Callable[[Batch], None]
"""A part of a transaction. It checks before it writes: when it raises a `RhymedError`, it has written nothing."""


class History(Database):
    """Safe to share between threads, but `commit` is for one thread alone."""

    def __init__(self, folder: Path, map_bytes: int, *, durable: bool = True) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.map_bytes = folder, map_bytes
        self._commits = 0
        self._commit_s: deque[float] = deque(maxlen=100)
        with contextlib.ExitStack() as opened:
            opened.callback(os.close, _lock(folder))
            self._env = self._open(durable)
            opened.callback(self._env.close)
            self._env.reader_check()
            self._open_tables(create=True)
            self._check_schema()
            self._opened = opened.pop_all()

    def _open(self, durable: bool) -> Any:
        try:
            return lmdb.open(
                str(self.folder),
                map_size=self.map_bytes,
                max_dbs=len(TABLES),
                sync=durable,
                readahead=False,
                max_readers=256,
            )
        except (lmdb.InvalidError, lmdb.CorruptedError, lmdb.VersionMismatchError) as error:
            raise errors.StoreDamaged(
                f"{self.folder} cannot be read: {error}; restore it, or use a new run"
            ) from None

    def close(self) -> None:
        self._env.sync(True)
        self._opened.close()

    def sync(self) -> None:
        """Make durable what was committed, for a history that was opened with `durable=False`."""
        self._env.sync(True)

    def commit(self, operations: Sequence[Operation]) -> list[Exception | None]:
        """All in one transaction. Tells for each what went wrong; one that fails does not fail the others."""
        try:
            return self._commit(operations)
        except lmdb.Error as error:
            if len(operations) == 1:
                return [self._explain(error)]
        return [self.commit([operation])[0] for operation in operations]

    def _commit(self, operations: Sequence[Operation]) -> list[Exception | None]:
        outcomes: list[Exception | None] = []
        began = time.perf_counter()
        with self._env.begin(write=True) as txn:
            batch = Batch(txn, self.used_bytes(txn))
            for operation in operations:
                try:
                    operation(batch)
                    outcomes.append(None)
                except errors.RhymedError as error:
                    outcomes.append(error)
            if batch.tokens:
                self.put_number(txn, "tokens", self.number(txn, "tokens") + batch.tokens)
        self._commits += 1
        self._commit_s.append(time.perf_counter() - began)
        return outcomes

    def _explain(self, error: Exception) -> errors.StoreError:
        if isinstance(error, lmdb.MapFullError | lmdb.TxnFullError):
            return self._full()
        if os.strerror(errno.ENOSPC) in str(error):
            return errors.StoreFull(f"the disk under {self.folder} is full; nothing acknowledged is lost")
        return errors.StoreError(f"{self.folder}: {error}")

    def _full(self) -> errors.StoreFull:
        return errors.StoreFull(
            f"{self.folder} has no room left in {self.map_bytes / 2**30:g} GiB; raise store.map_gib and start the"
            " store again: nothing acknowledged is lost"
        )

    def claim_room(self, batch: Batch, size: int) -> None:
        """Raises `StoreFull` unless `size` bytes of new data fit without touching the reserve."""
        if batch.used_bytes + size > self.map_bytes * (1 - RESERVE):
            raise self._full()
        batch.used_bytes += size

    def put_number(self, txn: Any, name: str, value: int) -> None:
        txn.put(name.encode(), str(value).encode(), db=self.tables["meta"])

    def stats(self) -> StoreStats:
        with self.read() as txn:
            return StoreStats(
                samples=txn.stat(self.tables["samples"])["entries"],
                tokens=self.number(txn, "tokens"),
                prompts=txn.stat(self.tables["prompts"])["entries"],
                used_bytes=self.used_bytes(txn),
                map_bytes=self.map_bytes,
                commits=self._commits,
                commit_ms=1000 * sum(self._commit_s) / max(1, len(self._commit_s)),
            )

    def _check_schema(self) -> None:
        with self._env.begin(write=True) as txn:
            found = self.number(txn, "schema", SCHEMA)
            self.put_number(txn, "schema", SCHEMA)
            if found != SCHEMA:
                txn.abort()
        if found != SCHEMA:
            raise errors.StoreError(wrong_schema(self.folder, found))


def is_open(folder: Path) -> bool:
    """Whether a store process, of this machine, has the folder."""
    if not (folder / "writer.lock").exists():
        return False
    try:
        os.close(_lock(folder))
    except errors.StoreError:
        return True
    return False


def _lock(folder: Path) -> int:
    """Descriptor of the folder's lock. LMDB lets writers take turns; that one run has one store is our rule."""
    descriptor = os.open(folder / "writer.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise errors.StoreError(f"{folder} is open in another store process; stop that one first") from None
    return descriptor
