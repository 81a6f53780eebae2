"""What clients of /events get: each client's position in rows and timeline, and the watch for new ones.

An event's id is the client's position, so that a browser that reconnects continues where it was. `ClientStream` is
blocking: only the source's thread calls it.

`Feed` watches, `ClientStream` is what one client gets, and `Hub` and `serve` send it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any

from rhymed.core.errors import MalformedMessage, Overloaded, RhymedError
from rhymed.core.messages import Queues
from rhymed.core.messages.fields import MOST
from rhymed.core.run.timeline import Event, Span
from rhymed.show.dashboard.data.source import Source, encode
from rhymed.show.dashboard.data.thread import SourceThread
from rhymed.show.dashboard.snapshots import LiveRun

log = logging.getLogger(__name__)

POLL_S = 1.0
ROWS_BACK = 20  # sent to a client that does not say what it has
SECONDS_BACK = 30.0
LATE_S = 5.0  # a row may be written this much later than one with a later time


class Feed:
    """Watches the run while clients are connected, and notifies them of what is new."""

    def __init__(self, thread: SourceThread, live: LiveRun) -> None:
        self.hub = Hub()
        self._thread, self._live = thread, live
        self._over = False

    async def watch(self) -> None:
        """Until cancelled."""
        size: Any = None
        while True:
            await asyncio.sleep(POLL_S)
            if not len(self.hub):
                continue
            try:
                queues = await self._live.queues()
                names = ["queues"] if queues else []
                new_rows, new_size = await self._thread.run(_poll, self._thread.source)
                names += ["steps"] * new_rows + ["timeline"] * (new_size != size)
                size = new_size
                self.hub.notify(*names)
                self._check_over(queues)
            except RhymedError as error:
                log.warning("events: %s", error)
            except Exception:
                log.exception("events")

    async def serve(self, client: Client, stream: ClientStream, write: Callable[[bytes], Awaitable[None]]) -> None:
        async def make(name: str) -> bytes | None:
            queues = await self._live.queues() if name in ("queues", "end") else None
            return await self._thread.run(stream.make, name, queues)

        over = self._check_over(await self._live.queues())
        await serve(client, make, write, ("queues", "steps", "timeline") + ("end",) * over)

    def close(self) -> None:
        """The server stops: clients get what is new, and `end` if the run is over."""
        self.hub.notify("steps", "timeline", *["end"] * self._live.is_over)
        self.hub.close()

    def _check_over(self, queues: Queues | None) -> bool:
        """Sends `end` to all clients the first time that the run is over."""
        over = queues.finished if queues else self._live.is_over
        if over and not self._over:
            self.hub.notify("end")
        self._over = over
        return over


def _poll(source: Source) -> tuple[bool, Any]:
    """Whether there are new rows, and the size of the timeline."""
    size = None
    with contextlib.suppress(OSError):
        size = (source.folder / "timeline.jsonl").stat().st_size
    before = source.seen
    source.rows.refresh()
    source.seen = source.rows.serial
    return source.seen != before, size


class ClientStream:
    def __init__(self, source: Source, serial: int, since: float) -> None:
        self._source, self._serial = source, serial
        self._since = self._first = since
        self._has_steps = False  # the first rows were sent
        self._sent: set[tuple[float, str | None, str]] = set()  # of the timeline's last LATE_S

    @classmethod
    def begin(cls, source: Source, after: str | None, since: str | None, last: str | None) -> ClientStream:
        """`after`: the client has all rows up to this step; `since`: the timeline up to this time; `last`: the id of
        its last event, which takes precedence."""
        rows = source.rows
        rows.refresh()
        moment = number(since, "since", time.time() - SECONDS_BACK)
        serial = max(0, rows.serial - ROWS_BACK) if after is None else rows.serial_of(int(number(after, "after", -1)))
        with contextlib.suppress(ValueError, AttributeError):
            at, _, then = (last or "").partition("/")
            serial, moment = min(int(at), rows.serial), number(then, "Last-Event-ID", 0.0)
        return cls(source, serial, moment)

    def make(self, name: str, queues: Queues | None) -> bytes | None:
        """The event of this name; None: nothing new."""
        if name == "queues":
            return frame(name, encode(self._source.queues(queues)))
        if name == "end":
            return frame(name, encode(self._source.run(queues)))
        data = self._steps() if name == "steps" else self._timeline()
        return None if data is None else frame(name, encode(data), f"{self._serial}/{self._since:.3f}")

    def _steps(self) -> Any:
        rows = self._source.rows
        rows.refresh()
        if rows.serial <= self._serial and self._has_steps:
            if rows.serial == self._serial:
                return None
            self._serial = 0  # the file was replaced
        answer = self._source.steps(since=self._serial)
        self._serial, self._has_steps = rows.serial, True
        return answer

    def _timeline(self) -> Any:
        answer = self._source.timeline(max(self._first, self._since - LATE_S))
        rows = {name: [row for row in answer[name] if _key(row) not in self._sent] for name in ("spans", "events")}
        if not any(rows.values()):
            return None
        self._since = max(self._since, *(row.t for new in rows.values() for row in new))
        sent = self._sent | {_key(row) for new in rows.values() for row in new}
        self._sent = {key for key in sent if key[0] > self._since - LATE_S}
        return {**answer, **rows}


def _key(row: Span | Event) -> tuple[float, str | None, str]:
    return row.t, row.worker, row.event if isinstance(row, Event) else ""


# Server-sent events. A newer event replaces one of the same name that was not yet sent.
#
# Invariant: a client costs one set of names and one task, however long it does not read, and one client too many is
# refused. How long a client may take nothing is a limit of its connection, whose loss ends `serve`. An event's data
# is made when it is sent, so a slow client gets the newest state; what was notified before the end is sent before it.
# Does not know what the events mean.

MOST_CLIENTS = 32
BEAT_S = 15.0  # without an event, a comment is sent, so that dead connections are noticed

Make = Callable[[str], Awaitable[bytes | None]]
"""An event's name -> its frame for one client; None: nothing new."""


class Client:
    def __init__(self) -> None:
        self.waiting: dict[str, None] = {}  # names, in order of notification
        self._wake = asyncio.Event()
        self._over = False

    def notify(self, name: str) -> None:
        self.waiting[name] = None
        self._wake.set()

    def put_first(self, names: tuple[str, ...]) -> None:
        """Before what it was notified of until now."""
        self.waiting = dict.fromkeys((*names, *self.waiting))
        self._wake.set()

    def close(self) -> None:
        self._over = True
        self._wake.set()

    async def names(self) -> AsyncIterator[str]:
        """Each name once, until the client is closed; empty: nothing for `BEAT_S`."""
        while not self._over:
            try:
                await asyncio.wait_for(self._wake.wait(), BEAT_S)
            except TimeoutError:
                yield ""
            self._wake.clear()
            while self.waiting:
                name = next(iter(self.waiting))
                del self.waiting[name]
                yield name


class Hub:
    def __init__(self, most: int = MOST_CLIENTS) -> None:
        self._clients: set[Client] = set()
        self._most = most

    def __len__(self) -> int:
        return len(self._clients)

    @contextlib.contextmanager
    def client(self) -> Iterator[Client]:
        """One more, until it is left. Raises `Overloaded`."""
        if len(self._clients) >= self._most:
            raise Overloaded("too many pages are open already: close one")
        client = Client()
        self._clients.add(client)
        try:
            yield client
        finally:
            self._clients.discard(client)

    def notify(self, *names: str) -> None:
        for client in self._clients:
            for name in names:
                client.notify(name)

    def close(self) -> None:
        """Every client gets its waiting events, and is disconnected."""
        for client in self._clients:
            client.close()


async def serve(
    client: Client, make: Make, write: Callable[[bytes], Awaitable[None]], first: tuple[str, ...] = ()
) -> None:
    """Until the client leaves or is disconnected. `first`: events that it gets at once."""
    client.put_first(first)
    with contextlib.suppress(ConnectionError):
        async for name in client.names():
            text = await make(name) if name else b":\n\n"
            if text:
                await write(text)


def frame(name: str, data: bytes, id: str = "") -> bytes:
    """One event; `data` is one line."""
    head = f"event: {name}\n" + (f"id: {id}\n" if id else "")
    return head.encode() + b"data: " + data + b"\n\n"


# Numbers in requests. All functions raise `MalformedMessage`, which names the parameter.


def whole(text: str, name: str) -> int:
    try:
        value = int(text) if len(text) < 20 else None
    except ValueError:
        value = None
    if value is None:
        raise MalformedMessage(f"{name}={text[:40]}: a whole number is expected")
    return value


def integer(query: Mapping[str, str], name: str, default: int, least: int = -MOST) -> int:
    text = query.get(name)
    value = default if text is None else whole(text, name)
    if not least <= value <= MOST:
        raise MalformedMessage(f"{name}={value}: {least} to {MOST} is expected")
    return value


def number(text: str | None, name: str, default: float) -> float:
    try:
        value = default if text is None else float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or abs(value) > 1e15:
        raise MalformedMessage(f"{name}={str(text)[:40]}: a number is expected")
    return value
