"""Content on shared storage as chunks that are named by their digests: what is there already is not written again.

A chunk counts when a manifest names it, which is written last. Blocking. Does not know what the content is.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO

from rhymed import atomic
from rhymed.errors import StorageError
from rhymed.remote.layout import File, chunk_name
from rhymed.remote.place import Place

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
        """Raises `StorageError`."""
        total, digests = 0, []
        waiting: deque[Future[None]] = deque()
        with ThreadPoolExecutor(WRITERS, "chunk") as pool:
            for chunk in _split(content):
                total += len(chunk)
                digests.append(digest := digest_of(chunk))
                if digest in self._known:
                    continue
                self._known.add(digest)
                self.new_bytes += len(chunk)
                waiting.append(pool.submit(self._place.write, chunk_name(digest), chunk))
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


def _split(content: IO[bytes]) -> Iterator[bytes]:
    while chunk := content.read(CHUNK_BYTES):
        yield chunk
