"""A process of `rhymed bench hosts` on one of its hosts: the trainer's publisher, or a worker's fetcher.

Reads a version a line from standard input, publishes or fetches it, and answers with one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np

from rhymed.wire.keys import Keyring, KeyRole

BLOCK_BYTES = 64 << 20
CHANGED = 0.01  # of the values, from each version to the next


def _keys(role: KeyRole, folder: str) -> Keyring:
    return Keyring(role, Path(folder) if folder else None, insecure=not folder)


async def publish(address: str, size: int, scratch: str, keys: str) -> None:
    from rhymed_workers.trainer.publish import Publisher
    from rhymed_workers.weights.server import WeightsServer

    random = np.random.default_rng(0)
    block = random.integers(0, 1 << 15, min(size, BLOCK_BYTES) // 2, np.uint16)
    publisher = Publisher(Path(scratch) / "weights", "float16")
    server = WeightsServer(address, publisher, keys=_keys("trainer", keys))

    def make(version: int) -> dict[str, Any]:
        block[random.random(len(block)) < CHANGED] ^= 1
        parts = [
            (f"w{start}", block[: min(len(block), (size - start) // 2)]) for start in range(0, size, BLOCK_BYTES)
        ]
        start_s = time.perf_counter()
        path = publisher.publish(version, [(name, part.view(np.float16)) for name, part in parts]).path
        return {"seconds": time.perf_counter() - start_s, "sent": _sent_bytes(), "path": str(path)}

    try:
        await _serve(lambda version: asyncio.to_thread(make, version))
    finally:
        server.close()
        publisher.close()


async def fetch(address: str, name: str, relay: str, keys: str) -> None:
    from rhymed_workers.weights.fetch import Fetcher, RelayOptions

    fetcher = Fetcher(name, keys=_keys("rollout", keys), relay=RelayOptions(relay))

    async def once(version: int) -> dict[str, Any]:
        start_s = time.perf_counter()
        path = await fetcher.fetch(version, address)
        return {"seconds": time.perf_counter() - start_s, "received": fetcher.received, "path": str(path)}

    try:
        await _serve(once)
    finally:
        fetcher.close()


async def _serve(work: Callable[[int], Awaitable[dict[str, Any]]]) -> None:
    """Until the end of standard input. Version -1 asks for the number of bytes sent."""
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        answer = {"sent": _sent_bytes()} if int(line) < 0 else await work(int(line))
        print(json.dumps(answer), flush=True)


def _sent_bytes() -> int:
    """Over this host's line."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == "line":
            return int(counts.split()[8])
    return 0


if __name__ == "__main__":
    role, *arguments = sys.argv[1:]
    if role == "trainer":
        asyncio.run(publish(arguments[0], int(arguments[1]), arguments[2], arguments[3]))
    else:
        asyncio.run(fetch(*arguments))
