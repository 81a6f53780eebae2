"""What clients of /events get: each client's position in rows and timeline, and the watch for new ones.

An event's id is the client's position, so that a browser that reconnects continues where it was. `ClientStream` is
blocking: only the source's thread calls it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from rhymed.dashboard import events
from rhymed.dashboard.data.source import Source, encode
from rhymed.dashboard.data.thread import SourceThread
from rhymed.dashboard.events import Client, Hub, frame
from rhymed.dashboard.parameters import number
from rhymed.dashboard.snapshots import LiveRun
from rhymed.errors import RhymedError
from rhymed.messages import Queues
from rhymed.run.timeline import Event, Span

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
        await events.serve(client, make, write, ("queues", "steps", "timeline") + ("end",) * over)

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
