"""From a version number to a local file of weights: the ladder of transports below `engine.load`.

1. On the trainer's host: the trainer's file.
2. Another worker of this host has a copy, or makes one: that copy.
3. Otherwise a copy, fetched in slices from the trainer and from other hosts that have them (`Download`, `relay`).

Only complete files whose slices were all verified are returned. Does not read the file's content.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import itertools
import logging
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from rhymed.core.errors import DeadlineExceeded, MalformedMessage, PeerGone, WireError
from rhymed.core.messages import (
    FailedSlice,
    GetManifest,
    GetSlice,
    Manifest,
    Message,
    NextSlices,
    Slice,
    SliceSource,
    SliceSources,
)
from rhymed.core.service.host import host_id
from rhymed.core.tasks import error_of, watched
from rhymed.core.wire.keys import OPEN, Keyring
from rhymed.core.wire.sockets import Client
from rhymed_workers.weights.copies import HostCopies
from rhymed_workers.weights.relay import Copy, Relay, open_relay, relay_address
from rhymed_workers.weights.slices import IN_FLIGHT, MappedFile, Slicing, deadline_s, digest
from rhymed_workers.weights.tracker import TRAINER

log = logging.getLogger(__name__)

# Connections to the trainer's weights address and to relays, several to each.
#
# One connection is encrypted and copied by one thread of zmq, so a large file needs several. A relay is tried by a
# plain connection first: one behind a firewall then costs seconds, and holds up nothing else.

TRAINER_LINKS, RELAY_LINKS = 4, 2
REACH_S = 3.0


class Sources:
    """Of one worker; `name` is unique among the peers of all sources."""

    def __init__(self, address: str, name: str, keys: Keyring) -> None:
        self.address, self._name, self._keys = address, name, keys
        self._links: dict[tuple[str, int], Client] = {}
        self._turns: dict[str, Iterator[int]] = {}
        self._reached: dict[str, asyncio.Future[None]] = {}

    def close(self) -> None:
        for link in self._links.values():
            link.close()
        self._links.clear()
        self._reached.clear()

    async def ask(self, message: Message, deadline_s: float) -> Message:
        """A request to the trainer that is not for a slice. Raises its error."""
        answer: Message = (await self._link(TRAINER, 0).request(message, deadline_s=deadline_s)).message
        return answer

    async def slice(self, source: str, ask: GetSlice, length: int) -> Any:
        """The slice's content, as a buffer. Raises the source's error."""
        if source != TRAINER:
            await self._reach(source)
        links = TRAINER_LINKS if source == TRAINER else RELAY_LINKS
        link = self._link(source, next(self._turns.setdefault(source, itertools.cycle(range(links)))))
        phase = f"slice {ask.index} of edition {ask.edition}"
        parcel = await link.request(ask, deadline_s=deadline_s(length, source != TRAINER), phase=phase)
        if not isinstance(parcel.message, Slice) or len(parcel.frames) != 1:
            raise MalformedMessage(f"{link.address} did not send {phase}")
        return parcel.frames[0]

    def forget(self, keep: set[str]) -> None:
        """Close the connections to relays that are not in `keep`."""
        for source, number in list(self._links):
            if source not in keep and source != TRAINER:
                self._links.pop((source, number)).close()
        self._reached = {source: found for source, found in self._reached.items() if source in keep}

    def _link(self, source: str, number: int) -> Client:
        link = self._links.get((source, number))
        if link is None:
            relayed = source != TRAINER
            link = self._links[source, number] = Client(
                source or self.address,
                f"{self._name}/{number}" if number else self._name,
                peer="a relay of weights" if relayed else "the trainer's weights",
                keys=self._keys.to("rollout" if relayed else "trainer"),
                resend=not relayed,
                views=True,
            )
        return link

    async def _reach(self, source: str) -> None:
        """Raises `PeerGone`. Tried once, until it is forgotten."""
        if source not in self._reached:
            self._reached[source] = watched(_try_to_reach(source), functools.partial(log.debug, "%s"))
        await asyncio.shield(self._reached[source])


async def _try_to_reach(source: str) -> None:
    url = urlsplit(source)
    if url.scheme != "tcp":
        return
    try:
        async with asyncio.timeout(REACH_S):
            _, writer = await asyncio.open_connection(url.hostname, url.port)
        writer.close()
    except (OSError, TimeoutError) as error:
        raise PeerGone(f"the relay at {source} cannot be reached: {error or f'no answer in {REACH_S:g} s'}") from None


# Fetches one edition of the weights in slices, from the trainer and from relays, while a relay here serves them.
#
# The trainer's tracker names the source of each slice. A slice counts as stored, and is served, only after its digest
# was found right; a relay that fails is reported and not used again. Knows no versions and no other workers of this
# host.

ASK_S = 60.0  # for an answer of the tracker: it may have to compute digests
WAIT_S = 2.0
AGAIN_S = 0.25
TRIES = 3  # of one slice that comes damaged


class Download:
    def __init__(self, sources: Sources, worker: str, relay: str, copy: Copy) -> None:
        self._sources, self._worker, self._relay, self._copy = sources, worker, relay, copy
        self._tasks: set[asyncio.Task[None]] = set()
        self._stored: list[int] = []  # since the last request
        self._failed: list[FailedSlice] = []
        self._damaged: Counter[int] = Counter()  # by slice: how often it came damaged
        self._used: set[str] = set()  # sources

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
        if failures := [error for task in done if (error := error_of(task)) is not None]:
            raise failures[0]

    async def _ask(self, begin: bool) -> list[SliceSource]:
        """Report news, and get sources. The tracker may wait only if there is nothing else to do."""
        stored, self._stored = self._stored, []
        failed, self._failed = self._failed, []
        complete = len(self._copy.stored) == self._copy.file.slicing.count
        message = NextSlices(
            edition=self._copy.edition,
            worker=self._worker,
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
        before = self._damaged[slice.index]
        ask = GetSlice(edition=self._copy.edition, index=slice.index)
        try:
            content = await self._sources.slice(slice.source, ask, length)
            await asyncio.to_thread(self._keep, slice, content)
        except WireError as error:
            if slice.source == TRAINER and not before < self._damaged[slice.index] < TRIES:
                raise
            log.warning("slice %d from %s: %s", slice.index, slice.source or "the trainer", error)
            self._failed.append(FailedSlice(index=slice.index, source=slice.source))
            return
        self._used.add(slice.source)
        self._copy.stored.add(slice.index)
        self._stored.append(slice.index)

    def _keep(self, slice: SliceSource, content: Any) -> None:
        """Blocking: verify and write."""
        length = self._copy.file.slicing.length(slice.index)
        found = digest(content)
        if len(content) != length or found != slice.digest:
            self._damaged[slice.index] += 1
            raise WireError(
                f"slice {slice.index} of edition {self._copy.edition} arrived damaged: {len(content)} bytes, digest"
                f" {found}; expected {length}, {slice.digest}"
            )
        self._copy.file.write(slice.index, content)


MANIFEST_S = 30.0
LOOK_S = 0.05  # between two looks at a copy that another worker makes
STUCK_S = 120.0  # that a copy does not grow
SMALL_BYTES = 2 << 20  # such a file comes from the trainer directly: relays would only add latency


class RelayOptions(NamedTuple):
    address: str = "off"  # as `net.relay`
    bind: str = ""  # as `net.bind`


NO_RELAY = RelayOptions()


class Fetcher:
    """One per worker. `name` is unique among the run's rollout workers."""

    def __init__(
        self,
        name: str,
        *,
        host: str | None = None,
        base: Path | None = None,
        keys: Keyring = OPEN,
        relay: RelayOptions = NO_RELAY,
        file: Callable[..., MappedFile] = MappedFile,
    ) -> None:
        self._name, self._keys, self._relaying, self._file = name, keys, relay, file
        self._host = host or host_id()
        self._base = base
        self._sources: Sources | None = None
        self._copies: HostCopies | None = None
        self._relay: Relay | None = None

    async def fetch(self, version: int, address: str) -> Path:
        """The file of this version; it stays until the next call. Raises the trainer's error, or `WireError`."""
        self._connect(address)
        manifest = await self._manifest(version)
        if manifest.host == self._host and _size(Path(manifest.path)) == manifest.size:
            return Path(manifest.path)
        name = f"v{version:06d}-{manifest.edition}"
        async with self._to_fetch(manifest, name) as (copies, found):
            path = found or await self._copy(copies, manifest, name)
        await asyncio.to_thread(copies.keep_only, path)
        return path

    def close(self) -> None:
        for part in (self._relay, self._sources, self._copies):
            if part is not None:
                part.close()
        self._relay = self._sources = self._copies = None

    def _connect(self, address: str) -> None:
        if self._sources is None or self._sources.address != address:
            self.close()
            self._sources = Sources(address, self._name, self._keys)

    async def _manifest(self, version: int) -> Manifest:
        assert self._sources is not None, "connected first"
        answer = await self._sources.ask(GetManifest(version=version), MANIFEST_S)
        if not isinstance(answer, Manifest):
            raise MalformedMessage(f"{self._sources.address} answered GetManifest with {type(answer).__name__}")
        return answer

    @contextlib.asynccontextmanager
    async def _to_fetch(self, manifest: Manifest, name: str) -> AsyncIterator[tuple[HostCopies, Path | None]]:
        """The copy that this host has; None: it is us who make it. Raises `DeadlineExceeded` if another worker does,
        and makes no progress."""
        assert self._sources is not None, "connected first"
        if self._copies is None:
            self._copies = await asyncio.to_thread(_open_copies, self._sources.address, manifest.size, self._base)
        copies, seen, since = self._copies, None, time.monotonic()
        while (found := copies.find(name)) is None and not copies.begin():
            if (now := copies.progress()) != seen:
                seen, since = now, time.monotonic()
            elif time.monotonic() - since > STUCK_S:
                raise DeadlineExceeded(
                    f"another worker of this host fetches version {manifest.version} to {copies.folder}, but for"
                    f" {STUCK_S:g} s nothing came: is it stopped?"
                )
            await asyncio.sleep(LOOK_S)
        try:  # between our look and our lock the other one may have finished
            yield copies, found or copies.find(name)
        finally:
            copies.end()

    async def _copy(self, copies: HostCopies, manifest: Manifest, name: str) -> Path:
        relay = await self._open_relay() if manifest.size > SMALL_BYTES else None
        slicing = Slicing(manifest.size, manifest.slice_bytes)
        part = await asyncio.to_thread(copies.part, name, manifest.size)
        copy = Copy(manifest.edition, self._file(part, slicing, writable=True))
        if relay is not None:
            relay.offer(copy)
        try:
            await self._download(manifest, copy, relay.address if relay is not None else "")
        except BaseException as error:
            part.unlink(missing_ok=True)
            if relay is not None:
                relay.withdraw(copy)
            if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                raise WireError(f"{copies.folder} has no room for version {manifest.version}: {error}") from error
            raise
        return copies.finish(part)

    async def _download(self, manifest: Manifest, copy: Copy, relay: str) -> None:
        assert self._sources is not None, "connected first"
        started = time.monotonic()
        download = Download(self._sources, self._name, relay, copy)
        await download.run()
        log.info(
            "version %d: %.1f MB received in %.2f s, from the trainer and %d relays",
            manifest.version,
            manifest.size / 1e6,
            time.monotonic() - started,
            download.relays,
        )

    async def _open_relay(self) -> Relay | None:
        if self._relay is None and self._sources is not None and self._relaying.address != "off":
            address = await asyncio.to_thread(relay_address, self._relaying.address, self._sources.address)
            self._relay = open_relay(address, self._relaying.bind, self._keys) if address else None
            if self._relay is None:
                self._relaying = self._relaying._replace(address="off")
        return self._relay


def _open_copies(address: str, size: int, base: Path | None) -> HostCopies:
    """Blocking. Raises `WireError`."""
    try:
        return HostCopies(address, size, base)
    except OSError as error:
        raise WireError(f"there is no folder for weights: {error}; set RHYMED_SHARED_MEMORY to one") from error


def _size(path: Path) -> int:
    """-1: missing, or not readable."""
    with contextlib.suppress(OSError):
        if os.access(path, os.R_OK):
            return path.stat().st_size
    return -1
