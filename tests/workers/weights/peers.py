"""A trainer's publisher and server, and workers that fetch, each in a process of its own if asked."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import numpy as np

from rhymed.core.wire.keys import OPEN, Keyring
from rhymed_workers.trainer.publish import Publisher
from rhymed_workers.weights.fetch import Fetcher, RelayOptions
from rhymed_workers.weights.server import WeightsServer

RELAY = RelayOptions("auto")


class Trainer:
    """Publishes float32 words; counts the slices that it sends."""

    def __init__(self, folder: Path, address: str = "tcp://127.0.0.1:*", keys: Keyring = OPEN) -> None:
        self.publisher = Publisher(folder, "float32")
        self.server = WeightsServer(address, self.publisher, keys=keys)
        self.address = self.server.address
        self.sent: list[int] = []
        answer = self.server._slice

        async def counted(ask: object) -> object:
            self.sent.append(ask.index)  # type: ignore[attr-defined]
            return await answer(ask)  # type: ignore[arg-type]

        self.server._slice = counted  # type: ignore[method-assign, assignment]

    def publish(self, version: int, words: np.ndarray) -> bytes:
        return self.publisher.publish(version, [("w", words)]).path.read_bytes()

    def close(self) -> None:
        self.server.close()
        self.publisher.close()


def words(mib: float, seed: int = 0) -> np.ndarray:
    """Random values, no two slices alike."""
    bits = np.random.default_rng(seed).integers(0, 1 << 30, int(mib * (1 << 18)), np.uint32)
    return bits.view(np.float32)


@contextlib.asynccontextmanager
async def trainer(folder: Path, keys: Keyring = OPEN) -> AsyncIterator[Trainer]:
    made = Trainer(folder / "published", keys=keys)
    try:
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def fetchers(base: Path, count: int, keys: Keyring = OPEN, relay: RelayOptions = RELAY) -> Iterator[list[Fetcher]]:
    """Each on a host of its own."""
    made = []
    for number in range(count):
        folder = base / f"host{number}"
        folder.mkdir(exist_ok=True)
        made.append(Fetcher(f"rollout-{number}", host=f"h{number}", base=folder, keys=keys, relay=relay))
    try:
        yield made
    finally:
        for fetcher in made:
            fetcher.close()


CHILD = """
import asyncio, sys
from pathlib import Path
from rhymed_workers.weights.fetch import Fetcher, RelayOptions

async def main(address, name, base):
    fetcher = Fetcher(name, host=name, base=Path(base), relay=RelayOptions("auto"))
    await fetcher.fetch(1, address)
    await asyncio.sleep(600)

asyncio.run(main(*sys.argv[1:]))
"""


def child(address: str, name: str, base: Path) -> subprocess.Popen[bytes]:
    """A worker that fetches version 1, and serves it."""
    base.mkdir(exist_ok=True)
    return subprocess.Popen([sys.executable, "-c", CHILD, address, name, str(base)])
