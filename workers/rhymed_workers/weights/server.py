"""The trainer's weights address: where a version's file is, who gets which slice from whom, and slices.

Digests of slices are computed by several threads when they are first asked for: ahead of the transfer, and never if
all engines are on the trainer's host. Create and close it on the event loop. Knows no engines.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from rhymed.core import messages
from rhymed.core.errors import MalformedMessage, TrainerError
from rhymed.core.service.host import host_id
from rhymed.core.wire.keys import OPEN, Keyring
from rhymed.core.wire.sockets import Parcel, Server
from rhymed_workers.weights.slices import MappedFile, Published, digest
from rhymed_workers.weights.tracker import Grant, Tracker

THREADS = min(8, os.cpu_count() or 1)
LONGEST_WAIT_S = 5.0  # of a worker for which there is no source
EDITIONS = 2  # of which the slices' digests and places are known
WANT = 64  # slices in one answer


class Shelf(Protocol):
    """The versions that are kept. Both methods block, and raise `TrainerError`."""

    def find(self, version: int) -> Published: ...

    def edition(self, edition: str) -> Published: ...


class _Edition:
    """What is known of one file's slices."""

    def __init__(self, file: MappedFile, useless: dict[str, float]) -> None:
        self.file = file
        self.tracker = Tracker(file.slicing.count, useless)
        self.changed = asyncio.Event()  # replaced when it is set
        self.digests: dict[int, asyncio.Future[str]] = {}  # by slice

    def announce(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


class WeightsServer:
    """Answers requests at `address`."""

    def __init__(self, address: str, shelf: Shelf, *, keys: Keyring = OPEN) -> None:
        self._shelf = shelf
        self._editions: dict[str, _Edition] = {}
        self._useless: dict[str, float] = {}  # relays that failed for several workers -> until when they are not used
        self._threads = ThreadPoolExecutor(THREADS, "weights")
        self._server = Server(address, messages.ToWeights, self._answer, keys=keys)
        self.address = self._server.address

    def close(self) -> None:
        self._server.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _answer(self, peer: bytes, message: Any, frames: Sequence[bytes]) -> messages.Message | Parcel:
        match message:
            case messages.GetManifest():
                return await self._manifest(message)
            case messages.NextSlices():
                return await self._sources(message)
            case messages.GetSlice():
                return await self._slice(message)
        raise MalformedMessage(f"the weights server does not take {type(message).__name__}")

    async def _manifest(self, ask: messages.GetManifest) -> messages.Manifest:
        version, edition, path, size, file = await asyncio.to_thread(self._shelf.find, ask.version)
        return messages.Manifest(
            version=version,
            edition=edition,
            host=host_id(),
            path=str(path),
            size=size,
            slice_bytes=file.slicing.slice_bytes,
        )

    async def _sources(self, ask: messages.NextSlices) -> messages.SliceSources:
        edition = await self._edition(ask.edition)
        tracker = edition.tracker
        if ask.relay and not ask.relay.startswith("tcp://"):
            raise MalformedMessage(f"{ask.relay!r} is no address that other hosts reach")
        if ask.begin:
            tracker.begin(ask.worker, ask.relay)
        elif not tracker.knows(ask.worker):
            raise TrainerError(f"{ask.worker} did not begin with edition {ask.edition}")
        tracker.stored(ask.worker, ask.stored, time.monotonic())
        for failure in ask.failed:
            tracker.failed(ask.worker, failure.index, failure.source, time.monotonic())
        if ask.stored or ask.failed:
            edition.announce()
        grants = await self._next(edition, ask)
        digests = await asyncio.gather(*(self._digest(edition, grant.index) for grant in grants))
        return messages.SliceSources(
            slices=[
                messages.SliceSource(index=grant.index, source=grant.source, digest=found)
                for grant, found in zip(grants, digests, strict=True)
            ]
        )

    async def _next(self, edition: _Edition, ask: messages.NextSlices) -> list[Grant]:
        """Waits until there is a source, or for as long as the worker wants."""
        want, deadline = min(ask.want, WANT), time.monotonic() + min(ask.wait_s, LONGEST_WAIT_S)
        while True:
            changed, now = edition.changed, time.monotonic()
            grants = edition.tracker.next(ask.worker, want, now)
            if grants or not want or now >= deadline:
                return grants
            try:
                async with asyncio.timeout(min(deadline - now, 1.0)):  # a slice may count as lost meanwhile
                    await changed.wait()
            except TimeoutError:
                continue

    async def _slice(self, ask: messages.GetSlice) -> Parcel:
        edition = await self._edition(ask.edition)
        return Parcel(messages.Slice(), [edition.file.slice(ask.index)])

    async def _edition(self, name: str) -> _Edition:
        if name not in self._editions:
            published = await asyncio.to_thread(self._shelf.edition, name)
            self._editions.setdefault(name, _Edition(published.file, self._useless))
            for old in list(self._editions)[:-EDITIONS]:
                del self._editions[old]
        return self._editions[name]

    async def _digest(self, edition: _Edition, index: int) -> str:
        """Computed by one of our threads, once."""
        future = edition.digests.get(index)
        if future is None or future.cancelled() or (future.done() and future.exception() is not None):
            loop = asyncio.get_running_loop()
            future = loop.run_in_executor(self._threads, lambda: digest(edition.file.slice(index)))
            edition.digests[index] = future
        return await asyncio.shield(future)
