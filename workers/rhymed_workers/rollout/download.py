"""From a version number to a local file of weights.

On the trainer's own machine this is the trainer's file; elsewhere it is a copy, fetched in slices and verified by its
digest before its path is returned. A copy is kept until the next one is complete. Does not read the file's content.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from rhymed.errors import MalformedMessage, WireError
from rhymed.messages import Done, GetManifest, GetWeights, Manifest
from rhymed.service.host import host_id
from rhymed.wire.keys import OPEN, Keyring
from rhymed.wire.sockets import Client

SLICE_BYTES = 8 << 20
IN_FLIGHT = 4  # slices: enough to hide a round trip, few enough to be answered well before the deadline
DEADLINE_S = 30.0
PREFIX = "rhymed-weights-"


class Fetcher:
    """One per worker. `name` is unique among the trainer's clients."""

    def __init__(self, name: str, *, host: str | None = None, base: Path | None = None, keys: Keyring = OPEN) -> None:
        self._name = name
        self._keys = keys.to("trainer")
        self._host = host or host_id()
        self._base = base
        self._folder: Path | None = None  # of copies; created for the first one
        self._link: Client | None = None

    async def fetch(self, version: int, address: str) -> Path:
        """The file of this version. Raises the trainer's error, or `WireError` if the copy is damaged."""
        link = self._connect(address)
        manifest = await self._manifest(link, version, self._host)
        if manifest.host == self._host and _size(Path(manifest.path)) == manifest.size:
            return Path(manifest.path)
        if not manifest.digest:  # the same host, but another container, which does not see the file
            manifest = await self._manifest(link, version, "")
        return await self._copy(link, manifest)

    async def _manifest(self, link: Client, version: int, host: str) -> Manifest:
        answer = (await link.request(GetManifest(version=version, host=host), deadline_s=DEADLINE_S)).message
        if not isinstance(answer, Manifest):
            raise MalformedMessage(f"{link.address} answered GetManifest with {type(answer).__name__}")
        return answer

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _connect(self, address: str) -> Client:
        if self._link is None or self._link.address != address:
            if self._link is not None:
                self._link.close()
            self._link = Client(address, self._name, peer="the trainer's weights", keys=self._keys)
        return self._link

    async def _copy(self, link: Client, manifest: Manifest) -> Path:
        if self._folder is None:
            self._folder = await asyncio.to_thread(_make_folder, self._base, manifest.size)
        part = self._folder / f"v{manifest.version}.part"
        try:
            await self._slices(link, manifest, part)
            digest = await asyncio.to_thread(_digest, part)
            if digest != manifest.digest:
                raise WireError(
                    f"weights of version {manifest.version} from {link.address} arrived damaged: digest {digest},"
                    f" expected {manifest.digest}"
                )
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        complete = part.rename(part.with_suffix(".safetensors"))
        for other in self._folder.iterdir():
            if other != complete:
                other.unlink(missing_ok=True)
        return complete

    async def _slices(self, link: Client, manifest: Manifest, part: Path) -> None:
        offsets = iter(range(0, manifest.size, SLICE_BYTES))
        with part.open("wb") as stream:

            async def fetch_slices() -> None:
                for offset in offsets:
                    length = min(SLICE_BYTES, manifest.size - offset)
                    ask = GetWeights(version=manifest.version, offset=offset, length=length)
                    phase = f"bytes {offset} to {offset + length} of version {manifest.version}"
                    answer, frames = await link.request(ask, deadline_s=DEADLINE_S, phase=phase)
                    if not isinstance(answer, Done) or len(frames) != 1 or len(frames[0]) != length:
                        raise MalformedMessage(f"{link.address} did not send {phase}")
                    await asyncio.to_thread(os.pwrite, stream.fileno(), frames[0], offset)

            tasks = [asyncio.ensure_future(fetch_slices()) for _ in range(IN_FLIGHT)]
            try:
                await asyncio.gather(*tasks)
            finally:  # no task may write after the file is closed
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)


def _size(path: Path) -> int:
    """-1: missing, or not readable."""
    with contextlib.suppress(OSError):
        if os.access(path, os.R_OK):
            return path.stat().st_size
    return -1


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _make_folder(base: Path | None, size: int) -> Path:
    """In shared memory if it has room for three versions, else in the temporary folder. Named after our pid."""
    if base is None:
        base = Path(tempfile.gettempdir())
        memory = Path("/dev/shm")
        if os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 3 * size:
            base = memory
    for old in base.glob(f"{PREFIX}*-*"):  # of a worker that was killed
        pid = old.name.removeprefix(PREFIX).partition("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=base))
