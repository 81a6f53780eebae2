"""Backups of a run's store on shared storage, each of one moment: only chunks that are not there yet are written.

A backup counts when its manifest is there, written last, and a checkpoint is there with which the run continues.
Blocking. Does not know when one is made.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from rhymed.errors import StorageError, StoreError
from rhymed.remote.chunks import Chunks
from rhymed.remote.layout import BACKUPS, CHUNKS, RUN_FILES, Backup, File, fitting
from rhymed.remote.place import Place
from rhymed.run.folder import ids_of
from rhymed_store.integrity.stream import stream
from rhymed_store.position import Position
from rhymed_store.shards.folders import folders_of, position_of_all

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
        stores, before, after = _stores(folder / "store", chunks)
        files |= stores
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


def _stores(store: Path, chunks: Chunks) -> tuple[dict[str, File], Position, Position]:
    """Also how far the stores were just before and just after they were read. Of several the first one is read last:
    what steps drew is never older than their marks."""
    before = position_of_all(store)
    files = {f"{folder.name}/data.mdb": _content(folder, chunks) for folder in reversed(folders_of(store))}
    after = position_of_all(store)
    if before is None or after is None or before.id != after.id:
        raise StoreError(f"{store} has no database, or got another one while it was read")
    return files, before, after


def _content(folder: Path, chunks: Chunks) -> File:
    with stream(folder) as content:
        file = chunks.put(content)
    if not file.bytes:
        raise StorageError(f"{folder}: nothing could be read")
    return file
