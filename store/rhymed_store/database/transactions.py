"""A run's database, open for its one writer: transactions of many operations.

Invariants: one writer (a lock on the folder); an operation happens wholly or not at all; the last part of the map is
reserved from new data, so in a full store scores, marks and the deletions that make room still work. The operations
and queries are in `writes` and `reads`; knows neither sockets nor the event loop.

`Database` is the writer, and `Space` claims room for new data.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import lmdb

from rhymed.core import atomic, errors
from rhymed.core.atomic import is_named
from rhymed.core.errors import StoreFull
from rhymed.core.messages import StoreStats
from rhymed_store.codec.records import SCHEMA
from rhymed_store.database.child import damaged
from rhymed_store.database.probe import LONG_S, SHORT_S, probe
from rhymed_store.database.tables import TABLES, Tables, check_schema

FILE, LOCK_FILE = "data.mdb", "lock.mdb"  # LMDB's
OPEN = b"open"  # content of the lock's file while a store has the folder open, and after it was killed


@dataclass
class Batch:
    """One write transaction in progress."""

    txn: Any
    used_bytes: int  # of the map: measured when it began, then estimated
    end_bytes: int  # of the file, where its last page ends: likewise
    tokens: int = 0  # response tokens added so far


DAMAGED = (lmdb.InvalidError, lmdb.CorruptedError, lmdb.VersionMismatchError, lmdb.PageNotFoundError)

Operation: TypeAlias = Callable[[Batch], object]
"""A part of a transaction. It checks before it writes: when it raises a `RhymedError`, it has written nothing."""


class Database(Tables):
    """Safe to share between threads, but `commit` is for one thread alone."""

    def __init__(self, folder: Path, map_bytes: int, *, durable: bool = True) -> None:
        atomic.make_folder(folder)
        self.folder, self.map_bytes = folder, map_bytes
        self._commits, self._usable, self._is_open = 0, True, False
        self._commit_s: deque[float] = deque(maxlen=100)
        with contextlib.ExitStack() as opened:
            self._lock = _lock(folder)
            opened.callback(os.close, self._lock)
            claim_lock(folder)
            file = folder / FILE
            if file.exists() and file.stat().st_size:
                killed = os.pread(self._lock, len(OPEN), 0) == OPEN
                probe(folder, limit_s=LONG_S if killed else SHORT_S)
            try:
                if not (file.exists() and file.stat().st_size):
                    self._create(file)
                self._env = self._open(durable)
                opened.callback(self._env.close)
                self._env.reader_check()
                self._space = Space(folder, map_bytes)
                self._lock_file = os.stat(folder / LOCK_FILE)
                opened.callback(self._space.close)
                self._space.reserve(self._end_bytes())
                self._open_tables(create=True)
                self._settle_schema()
            except lmdb.Error as error:
                raise self.explain(error) from None
            except OSError as error:
                full = errors.StoreFull(disk_full(folder, is_open=False))
                raise full if error.errno in FULL else errors.StoreError(f"{folder}: {error}") from None
            with contextlib.suppress(OSError):  # a full disk: the next start may take this one for closed cleanly
                os.pwrite(self._lock, OPEN, 0)
            self._opened, self._is_open = opened.pop_all(), True

    def _create(self, file: Path) -> None:
        """LMDB flushes neither the headers of a new file before it needs them nor its name: a power cut would leave
        a file without headers, or none."""
        with atomic.new_file(file) as part:
            lmdb.open(str(part), subdir=False, lock=False, map_size=self.map_bytes).close()
            atomic.sync(part)
        atomic.sync(self.folder)

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
        except DAMAGED as error:
            raise damaged(self.folder, str(error)) from None

    def close(self) -> None:
        try:
            self._env.sync(True)
            if self._usable:
                os.ftruncate(self._lock, 0)  # closed cleanly
        finally:
            self._opened.close()

    def _end_bytes(self) -> int:
        return (int(self._env.info()["last_pgno"]) + 1) * int(self._env.stat()["psize"])

    def sync(self) -> None:
        """Make all commits durable, for a database that was opened with `durable=False`."""
        self._env.sync(True)

    def commit(self, operations: Sequence[Operation]) -> list[Exception | None]:
        """All in one transaction. Returns each operation's error or None; a failed one does not fail the others."""
        try:
            return self._commit(operations)
        except lmdb.Error as error:
            if len(operations) == 1:
                return [self.explain(error)]
        return [self.commit([operation])[0] for operation in operations]

    def _commit(self, operations: Sequence[Operation]) -> list[Exception | None]:
        outcomes: list[Exception | None] = []
        began = time.perf_counter()
        end = self._end_bytes()
        self._space.reserve(end)
        with self._env.begin(write=True) as txn:
            batch = Batch(txn, self.used_bytes(txn), end)
            for operation in operations:
                try:
                    operation(batch)
                    outcomes.append(None)
                except errors.RhymedError as error:
                    outcomes.append(error)
            if batch.tokens:
                self.put_number(txn, "tokens", self.number(txn, "tokens") + batch.tokens)
        self.check_file()
        self._commits += 1
        self._commit_s.append(time.perf_counter() - began)
        return outcomes

    def check_file(self) -> None:
        """Raises `FilesLost` unless what is written is still under its name: else it would be gone with us. After a
        commit and before its answer, so nothing is acknowledged that cannot be read. Microseconds."""
        file = self.folder / FILE
        if self._space.is_here(file):
            return
        self._usable = False
        raise errors.FilesLost(
            f"{file} was removed, moved or replaced while the store had it open: nothing more is written. Put it"
            " back, or a backup of it, or resume the run with --without-history"
        )

    def check_locks(self) -> None:
        """Raises `Unusable` if a lock has lost its name: then neither readers nor a second store would see us."""
        named = atomic.is_named(self._lock, self.folder / "writer.lock")
        with contextlib.suppress(OSError):
            if named and os.path.samestat(os.stat(self.folder / LOCK_FILE), self._lock_file):
                return
        raise errors.Unusable(f"a lock in {self.folder} was removed or replaced: it has to be opened again")

    def rescue(self) -> Path | None:
        """Copy what a removed file holds into a new folder next to ours: it is gone when the last process that has it
        open ends. None: it still has a name somewhere, its run's folder is gone too, or no copy can be written."""
        if self._space.is_named or not self.folder.parent.is_dir():
            return None
        number = 1
        while (target := self.folder.with_name(f"{self.folder.name}.saved-{number}")).exists():
            number += 1
        try:
            target.mkdir()
            self._env.copy(str(target), compact=True)
            atomic.sync_folder(target)
        except (OSError, lmdb.Error):
            shutil.rmtree(target, ignore_errors=True)
            return None
        return target

    def explain(self, error: lmdb.Error) -> errors.StoreError:
        if isinstance(error, lmdb.MapFullError | lmdb.TxnFullError):
            return self._space.map_full()
        if any(os.strerror(number) in str(error) for number in FULL):
            return errors.StoreFull(disk_full(self.folder, is_open=self._is_open))
        if isinstance(error, (lmdb.PanicError, *DAMAGED)):
            self._usable = False
            return errors.Unusable(f"{self.folder} has to be opened again: {error}")
        return errors.StoreError(f"{self.folder}: {error}")

    def claim_space(self, batch: Batch, size: int) -> None:
        """Raises `StoreFull` unless `size` bytes of new data fit without touching the reserve."""
        self._space.claim(batch.used_bytes, batch.end_bytes, size)
        batch.used_bytes += size
        batch.end_bytes += size

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

    def _settle_schema(self) -> None:
        """A new folder gets this release's schema, a folder of another one is refused."""
        with self._env.begin() as txn:
            found = self.number(txn, "schema")
        if found:
            check_schema(self.folder, found)
            return
        with self._env.begin(write=True) as txn:
            self.put_number(txn, "schema", SCHEMA)


def is_open(folder: Path) -> bool:
    """Whether a store process on this machine has the folder open."""
    if not (folder / "writer.lock").exists():
        return False
    try:
        os.close(_lock(folder))
    except errors.StoreError:
        return True
    return False


def _lock(folder: Path) -> int:
    """Descriptor of the folder's lock. LMDB allows several writers in turn; one store per run is our rule."""
    descriptor = os.open(folder / "writer.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise errors.StoreError(f"{folder} is open in another store process; stop that one first") from None
        raise errors.StoreError(
            f"{folder} cannot be locked ({error.strerror}), as on some network file systems: put run.folder on a disk"
            " of this machine, and use run.remote for a copy on shared storage"
        ) from None
    return descriptor


# Space for new data: in LMDB's map, and on the disk, where it is allocated before it is needed.
#
# Invariant: a part of the map, and a part of the file after its last page, is reserved from new data. So in a full
# store, and on a full disk, scores, marks and the deletions that make room still work. A full disk is tried again, so
# writing resumes by itself. File systems without `fallocate` are trusted until a write fails.

MAP_SHARE = 1 / 16  # of the map, reserved from new data
DISK_RESERVE = 8 << 20  # bytes of the file after the last page; in a small map `MAP_SHARE` of it
GROW = (1 << 20, 64 << 20)  # bytes allocated at once: an eighth of the file, within these bounds
LOCK_BYTES = 5 << 12  # of LMDB's lock file for 256 readers
RETRY_S = 1.0
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def claim_lock(folder: Path) -> None:
    """Before LMDB opens the folder: it writes its lock file through a map, so a full disk would kill us."""
    file = os.open(folder / "lock.mdb", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.posix_fallocate(file, 0, os.fstat(file).st_size or LOCK_BYTES)  # other processes may have mapped its size
    except OSError as error:
        if error.errno in FULL:
            raise StoreFull(disk_full(folder, is_open=False)) from None
    finally:
        os.close(file)


class Space:
    """Of one open database. For the writer's thread only."""

    def __init__(self, folder: Path, map_bytes: int) -> None:
        self._folder, self._map_bytes = folder, map_bytes
        self._reserve = min(DISK_RESERVE, int(map_bytes * MAP_SHARE))
        self._file = os.open(folder / "data.mdb", os.O_RDWR | os.O_CLOEXEC)
        self._claimed = 0  # bytes of the file that are allocated
        self._not_before = 0.0  # when a full disk is tried again

    def close(self) -> None:
        os.close(self._file)

    def is_here(self, path: Path) -> bool:
        """Whether this is the file's name."""
        return is_named(self._file, path)

    @property
    def is_named(self) -> bool:
        """Whether the file has a name, here or elsewhere."""
        return os.fstat(self._file).st_nlink > 0

    def claim(self, used: int, end: int, size: int) -> None:
        """Raises `StoreFull` unless `size` new bytes fit next to `used` in the map and `end` in the file."""
        if used + size > self._map_bytes * (1 - MAP_SHARE):
            raise self.map_full()
        if not self._grow(end + size + self._reserve) and not self._fits(used, end, size):
            raise StoreFull(disk_full(self._folder))

    def reserve(self, end: int) -> None:
        """Before a transaction: allocate what scores and marks may need, if the disk has it."""
        self._grow(end + self._reserve)

    def _fits(self, used: int, end: int, size: int) -> bool:
        """Into free pages. Not all of them can be used: data needs runs of several."""
        whole = self._claimed - self._reserve
        return used + size <= whole * (1 - MAP_SHARE) and end <= self._claimed - self._reserve // 2

    def _grow(self, needed: int) -> bool:
        """Whether the file has this many bytes allocated, now."""
        needed = min(needed, self._map_bytes)
        if needed <= self._claimed:
            return True
        if time.monotonic() < self._not_before:
            return False
        more = min(max(needed // 8, GROW[0]), GROW[1])
        return any(self._allocate(min(size, self._map_bytes)) for size in (needed + more, needed))

    def _allocate(self, size: int) -> bool:
        try:
            os.posix_fallocate(self._file, self._claimed, size - self._claimed)
        except OSError as error:
            if error.errno in FULL:
                self._not_before = time.monotonic() + RETRY_S
                return False
            size = self._map_bytes  # no `fallocate` here: a write will fail
        self._claimed = size
        return True

    def map_full(self) -> StoreFull:
        return StoreFull(
            f"{self._folder} has no room left in {self._map_bytes / 2**30:g} GiB; raise store.map_gib and start the"
            " store again: nothing acknowledged is lost"
        )


def disk_full(folder: Path, *, is_open: bool = True) -> str:
    """`is_open`: its process lives; one that cannot open the store ends."""
    cure = "the store continues by itself" if is_open else "start it again"
    return f"the disk under {folder} is full; make room and {cure}: nothing acknowledged is lost"
