"""The trainer's weights address: where a version's file is, who gets which slice from whom, and slices.

Digests of slices, and changes to the version before, are computed by several threads when they are first asked for:
ahead of the transfer, and never if all engines are on the trainer's host. Create and close it on the event loop.
Knows no engines.

`WeightsServer` is the address; `encode_changes` and `apply_changes` write a slice as changes to another one.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rhymed.core import messages
from rhymed.core.errors import MalformedMessage, TrainerError
from rhymed.core.service.host import host_id
from rhymed.core.wire.keys import OPEN, Keyring
from rhymed.core.wire.sockets import Parcel, Server
from rhymed_workers.weights.slices import DIGESTS, MappedFile, Published, common_algorithm
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
        self.computed: dict[Hashable, asyncio.Future[Any]] = {}

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
            algorithm=common_algorithm(ask.algorithms),
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
        digests = await asyncio.gather(*(self._digest(edition, ask.algorithm, grant.index) for grant in grants))
        return messages.SliceSources(
            slices=[
                messages.SliceSource(index=grant.index, source=grant.source, digest=digest)
                for grant, digest in zip(grants, digests, strict=True)
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
        content = edition.file.slice(ask.index)
        if ask.base and (patch := await self._changes(edition, ask)) is not None:
            return Parcel(messages.Slice(base=ask.base), [patch])
        return Parcel(messages.Slice(), [content])

    async def _edition(self, name: str) -> _Edition:
        if name not in self._editions:
            published = await asyncio.to_thread(self._shelf.edition, name)
            self._editions.setdefault(name, _Edition(published.file, self._useless))
            for old in list(self._editions)[:-EDITIONS]:
                del self._editions[old]
        return self._editions[name]

    async def _digest(self, edition: _Edition, algorithm: str, index: int) -> str:
        if algorithm not in DIGESTS:
            raise MalformedMessage(f"digest {algorithm!r} is not known here")
        digest: str = await self._once(
            edition, (algorithm, index), lambda: DIGESTS[algorithm](edition.file.slice(index))
        )
        return digest

    async def _changes(self, edition: _Edition, ask: messages.GetSlice) -> bytes | None:
        """None: the base is not kept, is of another size, or differs in too much."""
        base = self._editions.get(ask.base)
        if base is None or base.file.slicing != edition.file.slicing:
            return None
        old, new = base.file, edition.file
        changed: bytes | None = await self._once(
            edition,
            (ask.base, ask.index, "changes"),
            lambda: encode_changes(old.slice(ask.index), new.slice(ask.index)),
        )
        return changed

    async def _once(self, edition: _Edition, key: Hashable, compute: Callable[[], Any]) -> Any:
        """Computed by one of our threads, once an edition."""
        future = edition.computed.get(key)
        if future is None or future.cancelled() or (future.done() and future.exception() is not None):
            future = edition.computed[key] = asyncio.get_running_loop().run_in_executor(self._threads, compute)
        return await asyncio.shield(future)


# A slice as changes to the same slice of another file: positions and new values. Pure.
#
# At small learning rates few bfloat16 values change in a step. Values are compared as 16-bit words, of whatever type.
# Layout, little-endian: number of bytes of the gaps (uint32), gaps, values (uint16). A gap is the number of unchanged
# words before a changed one, in bytes that are added up: 255 adds 255 and continues, a smaller one ends the gap. What
# results is verified by the digest of the whole slice, so a wrong base is detected.

SHARE = 8  # changes are sent if they are at most this part of the slice: a relay keeps them in memory
SAMPLE = 1 << 14  # words that are compared first
WORD_BYTES = 2
CONTINUE = 255


def encode_changes(old: Any, new: Any) -> bytes | None:
    """Changes from `old` to `new`, buffers of equal length; None if they are too many, or the length is odd."""
    if len(old) != len(new) or len(new) % WORD_BYTES:
        return None
    before, after = np.frombuffer(old, "<u2"), np.frombuffer(new, "<u2")
    limit = len(new) // SHARE
    most = limit // (WORD_BYTES + 1)  # a change takes its value and at least one byte of gap
    step = max(1, len(after) // SAMPLE)
    if np.count_nonzero(before[::step] != after[::step]) * step > 2 * most + step:
        return None
    changed = _changed(before, after)
    if len(changed) > most:
        return None
    gaps = _gap_bytes(np.diff(changed, prepend=-1) - 1)
    content = len(gaps).to_bytes(4, "little") + gaps.tobytes() + after[changed].tobytes()
    return content if len(content) <= limit else None


def apply_changes(old: Any, changes: Any, new: bytearray) -> memoryview:
    """The new slice, in the first bytes of `new`, which is at least as long. Raises `MalformedMessage` if the changes
    do not fit. A buffer that is used again saves the time in which the system finds new pages."""
    content = memoryview(new)[: len(old)]
    content[:] = old
    words = np.frombuffer(content, "<u2")
    gap_bytes = int.from_bytes(changes[:4], "little")
    gaps = np.frombuffer(changes[4 : 4 + gap_bytes], np.uint8)
    tail = changes[4 + gap_bytes :]
    if len(changes) < 4 or len(gaps) != gap_bytes or len(tail) % WORD_BYTES:
        raise MalformedMessage(f"changes of {len(changes)} bytes are cut off")
    values = np.frombuffer(tail, "<u2")
    ends = gaps != CONTINUE
    positions = (np.cumsum(np.where(ends, gaps.astype(np.int64) + 1, CONTINUE)) - 1)[ends]
    if len(positions) != len(values) or (len(positions) and positions[-1] >= len(words)):
        raise MalformedMessage(f"{len(values)} changed values at {len(positions)} positions of {len(words)}")
    words[positions] = values
    return content


def _changed(before: NDArray[np.uint16], after: NDArray[np.uint16]) -> NDArray[np.int64]:
    """Positions of unequal words. Compares four at once where it can: few are unequal."""
    whole = len(after) // 4 * 4
    fours = np.flatnonzero(before[:whole].view("<u8") != after[:whole].view("<u8"))
    inside = fours[:, None] * 4 + np.arange(4)
    found = inside[before[inside] != after[inside]]
    rest = whole + np.flatnonzero(before[whole:] != after[whole:])
    return np.concatenate([found, rest])


def _gap_bytes(gaps: NDArray[np.int64]) -> NDArray[np.uint8]:
    lengths = gaps // CONTINUE + 1
    content = np.full(int(lengths.sum()), CONTINUE, np.uint8)
    content[np.cumsum(lengths) - 1] = gaps % CONTINUE
    return content
