"""A process of `python -m benchmarks hosts` on one of its hosts: the trainer's publisher, or a worker's fetcher.

Reads a version a line from standard input, publishes or fetches it, and answers with one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rhymed.core.wire.keys import Keyring, KeyRole

if TYPE_CHECKING:
    from rhymed_workers.trainer.publish import Publisher
    from rhymed_workers.weights.slices import Published, Slicing

BLOCK_BYTES = 64 << 20


def _keys(role: KeyRole, folder: str) -> Keyring:
    return Keyring(role, Path(folder) if folder else None, insecure=not folder)


async def publish(address: str, size: int, window: int, scratch: str, keys: str) -> None:
    from benchmarks.hosts.window import WindowShelf
    from rhymed_workers.trainer.publish import Publisher
    from rhymed_workers.weights.server import WeightsServer

    shelf: Whole | WindowShelf
    if window:
        shelf = WindowShelf(Path(os.environ["RHYMED_SHARED_MEMORY"]), size, window)
        server = WeightsServer(address, shelf, keys=_keys("trainer", keys))
    else:
        shelf = Whole(Publisher(Path(scratch) / "weights", "float16"), size)
        server = WeightsServer(address, shelf.publisher, keys=_keys("trainer", keys))

    def make(version: int) -> dict[str, Any]:
        start_s = time.perf_counter()
        path = shelf.publish(version).path
        return {"seconds": time.perf_counter() - start_s, "size": path.stat().st_size}

    try:
        await _serve(lambda version: asyncio.to_thread(make, version))
    finally:
        server.close()
        shelf.close()


class Whole:
    """Versions of `size` bytes by a run's publisher."""

    def __init__(self, publisher: Publisher, size: int) -> None:
        self.publisher, self._size = publisher, size
        self._block = np.random.default_rng(0).integers(0, 1 << 15, min(size, BLOCK_BYTES) // 2, np.uint16)

    def publish(self, version: int) -> Published:
        block, size = self._block, self._size
        parts = [
            (f"w{start}", block[: min(len(block), (size - start) // 2)]) for start in range(0, size, BLOCK_BYTES)
        ]
        return self.publisher.publish(version, [(name, part.view(np.float16)) for name, part in parts])

    def close(self) -> None:
        self.publisher.close()


async def fetch(address: str, window: int, name: str, relay: str, keys: str) -> None:
    from benchmarks.hosts.window import WindowedFile
    from rhymed_workers.weights.fetch import Fetcher, RelayOptions
    from rhymed_workers.weights.slices import MappedFile

    def windowed(path: Path, slicing: Slicing, writable: bool = False) -> MappedFile:
        return WindowedFile(path, slicing, window, writable=writable)

    file = windowed if window else MappedFile
    fetcher = Fetcher(name, keys=_keys("rollout", keys), relay=RelayOptions(relay), file=file)

    async def once(version: int) -> dict[str, Any]:
        start_s = time.perf_counter()
        path = await fetcher.fetch(version, address)
        return {"seconds": time.perf_counter() - start_s, "size": path.stat().st_size}

    try:
        await _serve(once)
    finally:
        fetcher.close()


async def _serve(work: Callable[[int], Awaitable[dict[str, Any]]]) -> None:
    """Until the end of standard input. Version -1 only asks for the counts, which every answer has."""
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        answer = {} if int(line) < 0 else await work(int(line))
        used = resource.getrusage(resource.RUSAGE_SELF)
        print(json.dumps({**answer, "sent": _sent_bytes(), "cpu_s": used.ru_utime + used.ru_stime}), flush=True)


def _sent_bytes() -> int:
    """Over this host's line."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == "line":
            return int(counts.split()[8])
    return 0


def main(role: str, address: str, *rest: str) -> None:
    if role == "trainer":
        size, window, scratch, keys = rest
        asyncio.run(publish(address, int(size), int(window), scratch, keys))
    else:
        window, name, relay, keys = rest
        asyncio.run(fetch(address, int(window), name, relay, keys))


if __name__ == "__main__":
    main(*sys.argv[1:])
