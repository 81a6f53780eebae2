"""Fetches one edition of the weights in slices, from the trainer and from relays, while a relay here serves them.

The trainer's tracker names the source of each slice. A slice counts as stored, and is served, only after its digest
was found right; a relay that fails is reported and not used again. Knows no versions and no other workers of this
host.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import Counter
from collections.abc import Coroutine
from typing import Any

from rhymed.errors import MalformedMessage, WireError
from rhymed.messages import FailedSlice, GetSlice, NextSlices, SliceSource, SliceSources
from rhymed_workers.weights import changes
from rhymed_workers.weights.mapped import MappedFile
from rhymed_workers.weights.relay import Copy
from rhymed_workers.weights.slices import DIGESTS, IN_FLIGHT, deadline_s
from rhymed_workers.weights.sources import Sources
from rhymed_workers.weights.stream import client
from rhymed_workers.weights.stream.channel import Channel
from rhymed_workers.weights.tracker import TRAINER

log = logging.getLogger(__name__)

ASK_S = 60.0  # for an answer of the tracker: it may have to compute digests
WAIT_S = 2.0
AGAIN_S = 0.25
TRIES = 3  # of one slice that comes damaged


class Download:
    """`old`: the file of edition `copy.base`, of the same size; changes to it may be sent in place of slices."""

    def __init__(
        self, sources: Sources, worker: str, relay: str, algorithm: str, copy: Copy, old: MappedFile | None
    ) -> None:
        self._sources, self._worker, self._relay = sources, worker, relay
        self._algorithm, self._copy, self._old = algorithm, copy, old
        self._tasks: set[asyncio.Task[None]] = set()
        self._stored: list[int] = []  # since the last request
        self._failed: list[FailedSlice] = []
        self._damaged: Counter[int] = Counter()  # by slice: how often it came damaged
        self._whole: set[int] = set()  # slices whose changes did not lead to what was expected
        self._used: set[str] = set()  # sources
        self._buffers: list[bytearray] = []  # for slices that come as changes
        self.received = 0  # bytes of slices and changes

    @property
    def relays(self) -> int:
        """Those that a slice came from."""
        return len(self._used - {TRAINER})

    async def run(self) -> None:
        """Raises the trainer's error, `WireError` for a file that arrives damaged, and `OSError` on a full disk."""
        begin = True
        try:
            while len(self._copy.stored) < self._copy.file.slicing.count:
                for slice in await self._ask(begin):
                    self._start(self._fetch(slice))
                begin = False
                if self._tasks:
                    await self._one_finished()
            await self._ask(False)  # so that others know of the last slices
        finally:
            self._sources.end_streams()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        self._sources.forget(self._used)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.add(asyncio.get_running_loop().create_task(work))

    async def _one_finished(self) -> None:
        """Or a moment has passed, if more could be in flight: by then there may be a source."""
        pause_s = None if len(self._tasks) >= IN_FLIGHT else AGAIN_S
        done, self._tasks = await asyncio.wait(self._tasks, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
        if failures := [error for task in done if (error := task.exception()) is not None]:
            raise failures[0]

    async def _ask(self, begin: bool) -> list[SliceSource]:
        """Report news, and get sources. The tracker may wait only if there is nothing else to do."""
        stored, self._stored = self._stored, []
        failed, self._failed = self._failed, []
        complete = len(self._copy.stored) == self._copy.file.slicing.count
        message = NextSlices(
            edition=self._copy.edition,
            worker=self._worker,
            algorithm=self._algorithm,
            begin=begin,
            relay=self._relay,
            stored=stored,
            failed=failed,
            want=0 if complete else IN_FLIGHT - len(self._tasks),
            wait_s=0.0 if self._tasks else WAIT_S,
        )
        answer = await self._sources.ask(message, ASK_S)
        if not isinstance(answer, SliceSources):
            raise MalformedMessage(f"{self._sources.address} answered NextSlices with {type(answer).__name__}")
        return answer.slices

    async def _fetch(self, slice: SliceSource) -> None:
        length = self._copy.file.slicing.length(slice.index)
        base = self._copy.base if self._old is not None and slice.index not in self._whole else ""
        before = self._damaged[slice.index]
        ask = GetSlice(edition=self._copy.edition, index=slice.index, base=base)
        try:
            size = await self._sources.stream(slice.source, functools.partial(self._receive, slice, ask))
            if size is None:
                message, frames = await self._sources.slice(slice.source, ask, length)
                size = len(frames[0])
                await asyncio.to_thread(self._keep, slice, message.base, frames[0])
        except WireError as error:
            if base:
                self._whole.add(slice.index)
            if slice.source == TRAINER and not before < self._damaged[slice.index] < TRIES:
                raise
            log.warning("slice %d from %s: %s", slice.index, slice.source or "the trainer", error)
            self._failed.append(FailedSlice(index=slice.index, source=slice.source))
            return
        self._used.add(slice.source)
        self._copy.stored.add(slice.index)
        self._stored.append(slice.index)
        self.received += size

    def _receive(self, slice: SliceSource, ask: GetSlice, channel: Channel) -> int:
        """Blocking: the bytes that came. A whole slice is received into the file itself."""
        length = self._copy.file.slicing.length(slice.index)
        message, size = client.ask(channel, ask, deadline_s(length, slice.source != TRAINER))
        if size > length or (size != length and not message.base):
            raise MalformedMessage(f"slice {slice.index} with {size} bytes of {length}")
        content = memoryview(bytearray(size)) if message.base else self._copy.file.room(slice.index)
        channel.receive_content(content)
        if message.base:
            self._keep(slice, message.base, content)
        else:
            self._verify(slice, content)
        return size

    def _keep(self, slice: SliceSource, base: str, frame: Any) -> None:
        """Blocking: verify and write."""
        if not base:
            self._verify(slice, frame)
            self._copy.file.write(slice.index, frame)
            return
        if base != self._copy.base or self._old is None:
            raise MalformedMessage(f"slice {slice.index} as changes to edition {base}, which was not asked for")
        try:
            buffer = self._buffers.pop()
        except IndexError:  # all are in use
            buffer = bytearray(self._copy.file.slicing.slice_bytes)
        try:
            content = changes.apply(self._old.slice(slice.index), frame, buffer)
            self._verify(slice, content)
            self._copy.file.write(slice.index, content)
        finally:
            self._buffers.append(buffer)
        self._copy.changes[slice.index] = bytes(frame)

    def _verify(self, slice: SliceSource, content: Any) -> None:
        length = self._copy.file.slicing.length(slice.index)
        digest = DIGESTS[self._algorithm](content)
        if len(content) != length or digest != slice.digest:
            self._damaged[slice.index] += 1
            raise WireError(
                f"slice {slice.index} of edition {self._copy.edition} arrived damaged: {len(content)} bytes, digest"
                f" {digest}; expected {length}, {slice.digest}"
            )
