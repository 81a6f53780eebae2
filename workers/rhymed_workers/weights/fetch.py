"""From a version number to a local file of weights: the ladder of transports below `engine.load`.

1. On the trainer's host: the trainer's file.
2. Another worker of this host has a copy, or makes one: that copy.
3. Otherwise a copy, fetched in slices from the trainer and from other hosts that have them (`download`, `relay`).

Only complete files whose slices were all verified are returned. Does not read the file's content.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import NamedTuple

from rhymed.errors import DeadlineExceeded, MalformedMessage, WireError
from rhymed.messages import GetManifest, Manifest
from rhymed.service.host import host_id
from rhymed.wire.keys import OPEN, Keyring
from rhymed_workers.weights.copies import HostCopies
from rhymed_workers.weights.download import Download
from rhymed_workers.weights.mapped import MappedFile
from rhymed_workers.weights.relay import Copy, Relay, open_relay, relay_address
from rhymed_workers.weights.slices import DIGESTS, Slicing
from rhymed_workers.weights.sources import Sources

log = logging.getLogger(__name__)

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
        self._held: tuple[str, Path] | None = None  # edition and file that was returned last, if it is a copy
        self.received = 0  # bytes, by the last fetch

    async def fetch(self, version: int, address: str) -> Path:
        """The file of this version; it stays until the next call. Raises the trainer's error, or `WireError`."""
        self._connect(address)
        manifest = await self._manifest(version)
        self.received = 0
        if manifest.host == self._host and _size(Path(manifest.path)) == manifest.size:
            return Path(manifest.path)
        name = f"v{version:06d}-{manifest.edition}"
        async with self._to_fetch(manifest, name) as (copies, found):
            path = found or await self._copy(copies, manifest, name)
        await asyncio.to_thread(copies.keep_only, path)
        self._held = manifest.edition, path
        return path

    def close(self) -> None:
        for part in (self._relay, self._sources, self._copies):
            if part is not None:
                part.close()
        self._relay = self._sources = self._copies = self._held = None

    def _connect(self, address: str) -> None:
        if self._sources is None or self._sources.address != address:
            self.close()
            self._sources = Sources(address, self._name, self._keys)

    async def _manifest(self, version: int) -> Manifest:
        assert self._sources is not None, "connected first"
        answer = await self._sources.ask(GetManifest(version=version, algorithms=list(DIGESTS)), MANIFEST_S)
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
        base, old = self._base_for(slicing)
        copy = Copy(manifest.edition, self._file(part, slicing, writable=True), base)
        if relay is not None:
            relay.offer(copy)
        try:
            await self._download(manifest, copy, old, relay.address if relay is not None else "")
        except BaseException as error:
            part.unlink(missing_ok=True)
            if relay is not None:
                relay.withdraw(copy)
            if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                raise WireError(f"{copies.folder} has no room for version {manifest.version}: {error}") from error
            raise
        return copies.finish(part)

    async def _download(self, manifest: Manifest, copy: Copy, old: MappedFile | None, relay: str) -> None:
        assert self._sources is not None, "connected first"
        started = time.monotonic()
        download = Download(self._sources, self._name, relay, manifest.algorithm, copy, old)
        await download.run()
        self.received = download.received
        log.info(
            "version %d: %.1f MB received for %.1f MB in %.2f s, from the trainer and %d relays",
            manifest.version,
            download.received / 1e6,
            manifest.size / 1e6,
            time.monotonic() - started,
            download.relays,
        )

    def _base_for(self, slicing: Slicing) -> tuple[str, MappedFile | None]:
        """Edition and file to which slices may come as changes; an empty edition if there is none."""
        if self._held is not None:
            edition, path = self._held
            with contextlib.suppress(OSError, WireError):
                return edition, self._file(path, slicing)
        return "", None

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
