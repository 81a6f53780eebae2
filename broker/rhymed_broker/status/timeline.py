"""What the run's timeline says: heartbeats and events in, rows of `rhymed.run.timeline` out. Pure: the time comes in.

Invariant: a worker's rows add up to what its counters grew by since it was first heard; a heartbeat that was lost
leaves no gap, and a new process under an old name counts from nothing. Few or many workers, a minute or a month:
there are at most `ROWS_A_SECOND` rows, and a run of any age has had no more than `ROWS` times one plus the logarithm
of that age. Of the events that loading weights makes a worker has no more than rows; the others are few: one a step,
one a coming or going. What is not read is bounded too. Knows neither files nor what a worker is busy with.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from rhymed.messages import Heartbeat, Join
from rhymed.run.timeline import Event, Kind, Role, Span
from rhymed.service.activities import seconds_of

SHORTEST_S = 1.0  # of a row
EARLY = 0.9  # part of a row's length at which a heartbeat may end it: heartbeats come a little early or late
ROWS_A_SECOND = 32.0  # of all workers together
ROWS = 60_000
"""After as many rows each worker's next row is as long as the run is old, over its share of these: a run grows by as
many rows whenever its age grows e-fold. About 12 MB, of the 64 MiB that there are."""
TOGETHER_S = 5.0  # by which a process of this run may have begun before this timeline
JITTER_S = 0.01  # by which a counter of the same process may shrink
REMEMBERED = 1000  # workers that have gone
UNREAD = 20_000  # rows that nobody has taken: older ones are let go
LONGEST_TEXT = 200  # characters


@dataclass
class _Page:
    """A worker's row that is being written."""

    role: Role
    host: str
    pid: int
    begun: float
    loaded: float = -math.inf  # when its version was told last
    told: dict[str, float] = field(default_factory=dict)  # its counters at the last heartbeat
    inside: dict[str, float] = field(default_factory=dict)
    version: int | None = None
    rates: list[float] = field(default_factory=list)  # tokens a second, of each heartbeat


class TimelineRecorder:
    """`wall` and `now` are the same moment in seconds since 1970 and of a clock that never goes back."""

    def __init__(self, wall: float, now: float) -> None:
        self._wall, self._begun = wall, now
        self._last = 0.0  # time of the newest row
        self._pages: dict[str, _Page] = {}  # of those who are here
        self._left: dict[str, _Page] = {}  # of others: they may come back with the same counters
        self._rows: deque[Span | Event] = deque(maxlen=UNREAD)

    def joined(self, join: Join, now: float, rests_s: float = 0.0) -> None:
        """It has come, or come again: then what it counted goes on where it was. It gets no work for `rests_s`."""
        name, page = join.worker, self._pages.get(join.worker)
        if page is not None and page.pid != join.pid:
            self.gone("lost", name, now, "it started again")
            page = None
        if page is None:  # else it finds a broker that forgot it, and says so many times at once
            page = self._left.pop(name, None)
            known = page is not None and page.pid == join.pid
            self._pages[name] = page if page and known else _Page(join.role, join.host, join.pid, now)
            self.event("joined", now, worker=name)
        if rests_s > 0:
            self.event("rests", now, worker=join.worker, text=f"for {rests_s:.0f} s: it has died again and again")

    def heard(self, beat: Heartbeat, now: float) -> None:
        """A row may be whole with it. A worker that has not joined has none."""
        page = self._pages.get(beat.worker)
        if page is None:
            return
        counters = {name: told for name, told in seconds_of(page.role, beat.stats).items() if 0 <= told < math.inf}
        for name, seconds in self._grown(page, counters, now).items():
            page.inside[name] = page.inside.get(name, 0.0) + seconds
        page.told |= counters
        page.version = beat.version if beat.version >= 0 and page.role != "reward" else None
        rate = beat.stats.get("rollout/tokens_per_s", math.nan)
        if 0 <= rate < math.inf:
            page.rates.append(rate)
        if now - page.begun >= self._length(now) * EARLY:
            self._close(beat.worker, page, now)

    def gone(self, kind: Kind, worker: str, now: float, text: str | None = None) -> None:
        """It left or is lost; what was heard of it so far is a row."""
        page = self._pages.pop(worker, None)
        if page is not None:
            self._close(worker, page, now)
            self._left[worker] = page
            if len(self._left) > REMEMBERED:
                del self._left[next(iter(self._left))]
        self.event(kind, now, worker=worker, text=text)

    def finished(self, now: float, text: str) -> None:
        """The run is over; what was heard so far are rows."""
        for name, page in self._pages.items():
            self._close(name, page, now)
        self.event("finished", now, text=text)

    def event(
        self, kind: Kind, now: float, *, worker: str | None = None, step: int | None = None, text: str | None = None
    ) -> None:
        """Of a `version` that comes sooner than a row nothing is told: the next row has it."""
        if kind == "version" and not self._loads(worker, now):
            return
        text = text[:LONGEST_TEXT] if text else None
        self._rows.append(Event(t=self._time(now), event=kind, worker=worker, step=step, text=text))

    def drain(self) -> list[Span | Event]:
        """Rows since the last call, in the order of their times."""
        rows = list(self._rows)
        self._rows.clear()
        return rows

    def _grown(self, page: _Page, counters: Mapping[str, float], now: float) -> dict[str, float]:
        """Since the last heartbeat. Nothing where it is more than can have passed: it is older than this timeline."""
        before = page.told
        if any(told < before.get(name, 0.0) - JITTER_S for name, told in counters.items()):
            before = {}  # a new process
        grown = {name: max(0.0, told - before.get(name, 0.0)) for name, told in counters.items()}
        return grown if sum(grown.values()) <= now - self._begun + TOGETHER_S else {}

    def _loads(self, worker: str | None, now: float) -> bool:
        """Whether it is told that this worker has loaded a version."""
        page = self._pages.get(worker or "")
        if page is None or now - page.loaded < self._length(now) * EARLY:
            return False
        page.loaded = now
        return True

    def _length(self, now: float) -> float:
        """Seconds that a row covers at least."""
        workers, age = len(self._pages), now - self._begun
        return max(SHORTEST_S, workers / ROWS_A_SECOND, age * workers / ROWS)

    def _close(self, name: str, page: _Page, now: float) -> None:
        inside = {activity: round(seconds, 3) for activity, seconds in page.inside.items() if seconds >= 0.0005}
        rate = round(sum(page.rates) / len(page.rates), 1) if page.rates else None
        page.begun, page.inside, page.rates = now, {}, []
        if inside:
            self._rows.append(
                Span(
                    t=self._time(now),
                    worker=name,
                    role=page.role,
                    host=page.host,
                    s=round(sum(inside.values()), 3),
                    version=page.version,
                    tokens_per_s=rate,
                    inside=inside,
                )
            )

    def _time(self, now: float) -> float:
        """No two rows have the same, so whoever has read up to one has read all before it."""
        self._last = max(round(self._wall + now - self._begun, 3), round(self._last + 0.001, 3))
        return self._last
