"""The newest snapshot of a living run's queues, from its broker.

The broker is asked at most once per `FRESH_S`, however many clients there are, and less often while it does not
answer. The dashboard that the broker started asks over a pipe (`SnapshotPipe`), every other one over ZeroMQ
(`SnapshotClient`).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec

from rhymed.core.errors import RhymedError
from rhymed.core.messages import Queues
from rhymed.core.run.layout import RunLayout
from rhymed.core.tasks import watched
from rhymed.core.wire.addresses import is_removed

FRESH_S = 0.9
GONE_S = 3.0  # until a broker that did not answer is asked again
DEADLINE_S = 3.0
OVER_S = 30.0
PATIENCE_S = 5.0  # a request waits this long for a snapshot, then continues without one
MOST_BYTES = 64 << 20  # of a snapshot

Ask = Callable[[], Awaitable[Queues | None]]
"""One request; None: no answer."""


class LiveRun:
    def __init__(self, ask: Ask, is_gone: Callable[[], bool] = lambda: False) -> None:
        """`is_gone`: whether it is certain that nothing will answer any more."""
        self._ask, self._is_gone = ask, is_gone
        self._newest: Queues | None = None
        self._asked_at = 0.0
        self._request: asyncio.Future[Queues | None] | None = None
        self.was_alive = False
        self._answered_at = 0.0
        self._ended = False

    async def queues(self) -> Queues | None:
        """None: the run is not alive."""
        if self._ended:
            return None
        if self._asked_at and time.monotonic() < self._asked_at + (GONE_S if self._newest is None else FRESH_S):
            return self._newest
        if self._request is None:  # concurrent callers share one request
            self._request = watched(self._fetch())
        if self._asked_at and self._newest is None:
            return None  # it did not answer before: callers do not wait to learn that it still does not
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(asyncio.shield(self._request), PATIENCE_S)
        return None

    @property
    def is_over(self) -> bool:
        """It ended, is gone, never answered, or has been silent for too long for a restart."""
        silent = time.monotonic() > self._answered_at + OVER_S
        return self._ended or not self.was_alive or self._is_gone() or silent

    def end(self) -> bool:
        """The run is over and does not continue. Returns whether somebody has asked for a snapshot lately."""
        self._ended = True
        if self._request is not None:
            self._request.cancel()  # its callers continue without an answer
        return time.monotonic() < self._asked_at + 3 * FRESH_S

    async def _fetch(self) -> Queues | None:
        try:
            self._newest = await self._ask()
            if self._newest is not None:
                self.was_alive, self._answered_at = True, time.monotonic()
        except asyncio.CancelledError:
            self._newest = None
        finally:
            self._asked_at, self._request = time.monotonic(), None
        return self._newest


def plain(value: Any) -> Any:
    """A message with all its fields: readers of JSON do not know the defaults."""
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, list):
        return [plain(entry) for entry in value]
    return value


async def never() -> None:
    """For a run without a broker."""


class SnapshotClient:
    """Asks a run's broker over ZeroMQ. Close it."""

    def __init__(self, layout: RunLayout) -> None:
        self._layout = layout
        self._client: Any = None

    async def __call__(self) -> Queues | None:
        if is_removed(self._layout.broker):
            return None
        from rhymed.core.run.client import ask
        from rhymed.core.wire.sockets import Client

        try:
            if self._client is None:
                self._client = Client(self._layout.broker, peer="broker", keys=self._layout.keys("viewer"))
            queues = await ask(self._client, deadline_s=DEADLINE_S)
        except RhymedError:
            return None
        return queues if queues.run == self._layout.folder.name else None

    def is_gone(self) -> bool:
        """`rhymed run` removes the folder of its sockets at the end; a broker that restarts, only its own socket."""
        folder = Path(self._layout.broker.removeprefix("ipc://")).parent
        return self._layout.broker.startswith("ipc://") and not folder.exists()

    def close(self) -> None:
        if self._client is not None:
            self._client.close()


class Writer(Protocol):
    def write(self, data: bytes) -> None: ...


class SnapshotPipe:
    """Asks the broker that started this process: writes a line, reads a snapshot after its length (4 bytes)."""

    def __init__(self, reader: asyncio.StreamReader, writer: Writer) -> None:
        self._reader, self._writer = reader, writer
        self._decode = msgspec.msgpack.Decoder(Queues).decode
        self.gone = asyncio.Event()

    async def __call__(self) -> Queues | None:
        try:
            self._writer.write(b"?\n")
            size = int.from_bytes(await self._reader.readexactly(4), "big")
            return self._decode(await self._reader.readexactly(min(size, MOST_BYTES)))
        except (EOFError, ConnectionError):
            self.gone.set()
            return None
