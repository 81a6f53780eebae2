"""Space for new data: in LMDB's map, and on the disk, where it is allocated before it is needed.

Invariant: a part of the map, and a part of the file after its last page, is reserved from new data. So in a full
store, and on a full disk, scores, marks and the deletions that make room still work. A full disk is tried again, so
writing resumes by itself. File systems without `fallocate` are trusted until a write fails.
"""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

from rhymed.atomic import is_named
from rhymed.errors import StoreFull

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
