"""One client's place in what happens: up to which row of metrics, and up to which moment, it has been told.

An event's id is that place, so a browser whose connection broke goes on where it was. Blocking: for the source's
thread, which alone calls it.
"""

from __future__ import annotations

import contextlib
import math
import time
from typing import Any

from rhymed.dashboard.data.source import Source, encode
from rhymed.dashboard.events import frame
from rhymed.dashboard.snapshots import plain
from rhymed.errors import MalformedMessage
from rhymed.messages import Queues
from rhymed.run.timeline import Event, Span

ROWS_BACK = 20  # told to who does not say what it has
SECONDS_BACK = 30.0
LATE_S = 5.0  # a row may be written so much later than one with a later time


class Stream:
    def __init__(self, source: Source, serial: int, since: float) -> None:
        self._source, self._serial = source, serial
        self._since = self._first = since
        self._told = False  # the first rows were
        self._sent: set[tuple[float, str | None, str]] = set()  # of the timeline's last LATE_S

    @classmethod
    def begin(cls, source: Source, after: str | None, since: str | None, last: str | None) -> Stream:
        """`after`: has all rows up to this step; `since`: the timeline up to then; `last`: an id, before both."""
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
            return frame(name, encode(plain(queues)))
        if name == "end":
            return frame(name, encode(self._source.run(queues)))
        data = self._steps() if name == "steps" else self._timeline()
        return None if data is None else frame(name, encode(data), f"{self._serial}/{self._since:.3f}")

    def _steps(self) -> Any:
        rows = self._source.rows
        rows.refresh()
        if rows.serial <= self._serial and self._told:
            if rows.serial == self._serial:
                return None
            self._serial = 0  # the file is another one
        found = rows.answer(since=self._serial)
        self._serial, self._told = rows.serial, True
        return found

    def _timeline(self) -> Any:
        begin = max(self._first, self._since - LATE_S)
        found = self._source.timeline(begin)
        rows = {name: [row for row in found[name] if _key(row) not in self._sent] for name in ("spans", "events")}
        if not any(rows.values()):
            return None
        self._since = max(self._since, *(row.t for own in rows.values() for row in own))
        seen = self._sent | {_key(row) for own in rows.values() for row in own}
        self._sent = {key for key in seen if key[0] > self._since - LATE_S}
        return {**found, **rows}


def _key(row: Span | Event) -> tuple[float, str | None, str]:
    return row.t, row.worker, row.event if isinstance(row, Event) else ""


def number(text: str | None, name: str, default: float) -> float:
    """Raises `MalformedMessage`."""
    try:
        found = default if text is None else float(text)
    except ValueError:
        found = math.nan
    if not math.isfinite(found) or abs(found) > 1e15:
        raise MalformedMessage(f"{name}={str(text)[:40]}: a number is expected")
    return found
