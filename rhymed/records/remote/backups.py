"""Backups of a run's store on shared storage, each of one moment: only chunks that are not there yet are written.

A backup counts when its manifest is there, written last, and a checkpoint is there with which the run continues.
`Backups` has them; `Chunks` is the content by its digests. Blocking. Does not know when one is made.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO

import msgspec

from rhymed.core import atomic
from rhymed.core.errors import StorageError, StoreError
from rhymed.core.run.layout import ids_of
from rhymed.records.remote.place import (
    BACKUPS,
    CHUNKS,
    RUN_FILES,
    STORE_FILE,
    Backup,
    File,
    Place,
    chunk_name,
    fitting,
)
from rhymed_store.database.image import stream
from rhymed_store.position import Position, position_of

log = logging.getLogger(__name__)


class Backups:
    def __init__(self, run: Place) -> None:
        self._run = run
        self._place, self._chunks = run.child(BACKUPS), run.child(CHUNKS)

    def all(self) -> list[Backup]:
        """The whole ones, oldest first. A manifest that cannot be decoded was not written to its end."""
        found = []
        for name in self._place.names():
            try:
                found.append(msgspec.json.decode(self._place.read(name) or b"", type=Backup))
            except (msgspec.DecodeError, UnicodeDecodeError):
                log.warning("%s/%s is no whole manifest: left out", self._place, name)
        return sorted(found, key=lambda backup: backup.number)

    def make(self, folder: Path, steps: int, earlier: Sequence[Backup]) -> tuple[Backup, int]:
        """Write the chunks of a new backup of the run in `folder`, but not its manifest: see `seal`. Also the bytes
        that were new. Raises `StorageError`, `StoreError`."""
        known = {digest for backup in earlier for digest in backup.chunks}
        chunks = Chunks(self._chunks, known)
        files = {}
        for name in RUN_FILES:
            if (folder / name).is_file():
                with (folder / name).open("rb") as content:
                    files[name] = chunks.put(content)
        files[STORE_FILE], before, after = _store(folder / "store", chunks)
        return Backup(
            number=max((backup.number for backup in earlier), default=0) + 1,
            ids=ids_of(folder),
            steps=steps,
            end=before.end,
            forgotten=after.forgotten,
            at=time.time(),
            files=files,
        ), chunks.new_bytes

    def seal(self, backup: Backup, checkpoints: Sequence[int]) -> bool:
        """Make it count. False: none of these checkpoints, by their steps, fits."""
        if fitting(backup, checkpoints) is None:
            return False
        self._place.write(backup.name, msgspec.json.encode(backup))
        return True

    def prune(self, keep: int) -> list[Backup]:
        """Returns the backups that are kept. A manifest goes before its chunks."""
        found = self.all()
        old, kept = found[:-keep], found[-keep:]
        for backup in old:
            self._place.remove(backup.name)
        if old:
            self.sweep(kept)
        return kept

    def sweep(self, kept: Sequence[Backup]) -> None:
        """Remove the chunks that none of these backups has: of old ones, and of one that failed."""
        needed = {digest for backup in kept for digest in backup.chunks}
        for folder in self._chunks.names():
            for digest in self._chunks.child(folder).names():
                if digest not in needed:
                    self._chunks.child(folder).remove(digest)


def _store(store: Path, chunks: Chunks) -> tuple[File, Position, Position]:
    """Also how far the store was just before and just after it was read."""
    before = position_of(store)
    with stream(store) as content:
        file = chunks.put(content)
    if not file.bytes:
        raise StorageError(f"{store}: nothing could be read")
    after = position_of(store)
    if before is None or after is None or before.id != after.id:
        raise StoreError(f"{store} has no database, or got another one while it was read")
    return file, before, after


# Content on shared storage as chunks that are named by their digests: what is there already is not written again.
#
# A chunk counts when a manifest names it, which is written last. Blocking. Does not know what the content is.

CHUNK_BYTES = 1 << 18  # at fixed places of a file, so that a database's unchanged pages are unchanged chunks
WRITERS = 8  # threads


def digest_of(chunk: bytes) -> str:
    """Blake2b-160 in hex: chunks with equal digests are taken for equal."""
    return hashlib.blake2b(chunk, digest_size=20).hexdigest()


class Chunks:
    """`known`: digests of chunks that are there. `new_bytes`: written by this object."""

    def __init__(self, place: Place, known: set[str]) -> None:
        self._place, self._known, self.new_bytes = place, set(known), 0

    def put(self, content: IO[bytes]) -> File:
        """A chunk may be read by those who may read the file. Raises `StorageError`."""
        total, digests, mode = 0, [], _mode(content)
        waiting: deque[Future[None]] = deque()
        with ThreadPoolExecutor(WRITERS, "chunk") as pool:
            while chunk := content.read(CHUNK_BYTES):
                total += len(chunk)
                digests.append(digest := digest_of(chunk))
                if digest in self._known:
                    continue
                self._known.add(digest)
                self.new_bytes += len(chunk)
                waiting.append(pool.submit(self._place.write, chunk_name(digest), chunk, mode))
                while len(waiting) > 2 * WRITERS:
                    waiting.popleft().result()
            for one in waiting:
                one.result()
        return File(total, digests)


def fetch(place: Place, file: File, target: Path) -> None:
    """Durable. Raises `StorageError` where a chunk is missing or is not what was written, `OSError`."""
    target.parent.mkdir(parents=True, exist_ok=True)

    def chunk(digest: str) -> bytes:
        found = place.read(chunk_name(digest))
        if found is None or digest_of(found) != digest:
            raise StorageError(f"{place}/{chunk_name(digest)} is {'missing' if found is None else 'damaged'}")
        return found

    with ThreadPoolExecutor(WRITERS, "chunk") as pool, target.open("wb") as written:
        for start in range(0, len(file.chunks), 2 * WRITERS):
            for content in pool.map(chunk, file.chunks[start : start + 2 * WRITERS]):
                written.write(content)
    if (size := target.stat().st_size) != file.bytes:
        raise StorageError(f"{target.name} has {size} bytes, {file.bytes} were written")
    atomic.sync(target)


def _mode(content: IO[bytes]) -> int | None:
    try:
        found = os.fstat(content.fileno()).st_mode
    except OSError:  # bytes in memory
        return None
    return stat.S_IMODE(found) if stat.S_ISREG(found) else None
