"""The living part of a run: the newest snapshot of its queues, from whoever can give one.

Asked at most once a `FRESH_S`, however many look. A run that does not answer is not alive; then it is asked less
often. Beside the broker a pipe leads to it (`Piped`), elsewhere it is asked over ZeroMQ (`Asked`).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec

from rhymed.errors import RhymedError
from rhymed.messages import Queues
from rhymed.run.layout import RunLayout
from rhymed.wire.addresses import is_removed

FRESH_S = 0.9
GONE_S = 3.0  # until one that did not answer is asked again
OVER_S = 30.0
PATIENCE_S = 5.0  # with an answer; then what was asked for goes without
MOST_BYTES = 64 << 20  # of a snapshot

Ask = Callable[[], Awaitable[Queues | None]]
"""One question; None: nobody answers."""


class Live:
    def __init__(self, ask: Ask, over: Callable[[], bool] = lambda: False) -> None:
        """`over`: whether it is plain that nobody will answer any more."""
        self._ask, self._over = ask, over
        self._newest: Queues | None = None
        self._at = 0.0
        self._asking: asyncio.Future[Queues | None] | None = None
        self.was_alive = False
        self._heard = 0.0
        self._ended = False

    async def queues(self) -> Queues | None:
        """None: the run is not alive."""
        if self._ended:
            return None
        if self._at and time.monotonic() < self._at + (GONE_S if self._newest is None else FRESH_S):
            return self._newest
        if self._asking is None:  # who comes meanwhile waits for the same answer
            self._asking = asyncio.ensure_future(self._fetch())
        if self._at and self._newest is None:
            return None  # it was not there: nobody waits to hear that it still is not
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(asyncio.shield(self._asking), PATIENCE_S)
        return None

    @property
    def is_over(self) -> bool:
        """It was said or is plain, or nobody has ever answered, or not for so long that it is no restart."""
        return self._ended or not self.was_alive or self._over() or time.monotonic() > self._heard + OVER_S

    def end(self) -> None:
        """Whoever answered goes, and not to come back."""
        self._ended = True
        if self._asking is not None:
            self._asking.cancel()  # who waits for the answer goes on without

    async def _fetch(self) -> Queues | None:
        try:
            self._newest = await self._ask()
            if self._newest is not None:
                self.was_alive, self._heard = True, time.monotonic()
        except asyncio.CancelledError:
            self._newest = None
        finally:
            self._at, self._asking = time.monotonic(), None
        return self._newest


def plain(value: Any) -> Any:
    """Of a message, with the fields that have their default: who reads JSON knows none."""
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, list):
        return [plain(one) for one in value]
    return value


async def never() -> None:
    """Of a run that has no broker."""


class Asked:
    """Asks a broker, where one can be. Close it."""

    def __init__(self, where: RunLayout) -> None:
        self._where = where
        self._client: Any = None

    async def __call__(self) -> Queues | None:
        if is_removed(self._where.broker):
            return None
        from rhymed.run.client import ask  # with zmq, which a dashboard next to its broker does not need
        from rhymed.wire.sockets import Client

        try:
            if self._client is None:
                self._client = Client(self._where.broker, peer="broker", keys=self._where.keys("viewer"))
            queues = await ask(self._client)
        except RhymedError:
            return None
        return queues if queues.run == self._where.folder.name else None

    def over(self) -> bool:
        """`rhymed run` takes the folder of its sockets away; a broker that starts again, only its own socket."""
        folder = Path(self._where.broker.removeprefix("ipc://")).parent
        return self._where.broker.startswith("ipc://") and not folder.exists()

    def close(self) -> None:
        if self._client is not None:
            self._client.close()


class Pipe(Protocol):
    """The two ends that lead to the broker."""

    def write(self, data: bytes) -> None: ...


class Piped:
    """Asks the broker that this process belongs to: a line there, a snapshot back, its length before it."""

    def __init__(self, reader: asyncio.StreamReader, writer: Pipe) -> None:
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
