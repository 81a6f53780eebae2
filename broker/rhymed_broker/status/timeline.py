"""Records the run's timeline: heartbeats and events in, rows of `rhymed.core.run.timeline` out. Pure: the time comes
in.

Invariants: a worker's rows add up to the growth of its counters since it was first heard; a lost heartbeat leaves no
gap, and a new process under an old name counts from zero. For any number of workers there are at most `ROWS_A_SECOND`
rows per second, and a run of age t has at most `ROWS` * (1 + log t). Events are few: one per step, join or loss.
Unread rows are bounded too. Knows no files.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rhymed.core.messages import Heartbeat, Join, Usage
from rhymed.core.run.metrics import MetricsLog
from rhymed.core.run.timeline import Event, Kind, Role, Span, Writer
from rhymed.core.service.stopwatch import seconds_of

GIB = 1 << 30


def used(usage: Usage) -> dict[str, float]:
    """The fields of `Span` that say what a worker uses. What it does not know is left out."""
    shares = [gpu.utilization for gpu in usage.gpus if gpu.utilization is not None]
    memory = [gpu.memory for gpu in usage.gpus if gpu.memory is not None]
    celsius = [gpu.celsius for gpu in usage.gpus if gpu.celsius is not None]
    return {
        "cpu": round(usage.cpu, 2),
        "ram_gib": round(usage.memory / GIB, 2),
        **({"gpu": round(sum(shares) / len(shares), 3)} if shares else {}),
        **({"gpu_gib": round(sum(memory) / GIB, 2)} if memory else {}),
        **({"gpu_celsius": round(max(celsius), 1)} if celsius else {}),
    }


SHORTEST_S = 1.0  # length of a row
EARLY = 0.9  # part of a row's length after which a heartbeat may end it: heartbeats jitter
ROWS_A_SECOND = 32.0  # of all workers together
ROWS = 60_000
"""A run adds this many rows whenever its age grows e-fold: a row lasts age * workers / ROWS. About 12 MB, of
at most 64 MiB."""
TOGETHER_S = 5.0  # a process may have started so long before this recorder
JITTER_S = 0.01  # a counter of the same process may shrink by this
REMEMBERED = 1000  # workers that have left
UNREAD = 20_000  # rows that are not drained: older ones are dropped
LONGEST_TEXT = 200  # characters


@dataclass
class _Page:
    """A worker's current row."""

    role: Role
    host: str
    pid: int
    begun: float
    counters: dict[str, float] = field(default_factory=dict)  # at the last heartbeat
    inside: dict[str, float] = field(default_factory=dict)
    version: int | None = None
    newest: dict[str, float] = field(default_factory=dict)  # speed and use, of its last heartbeat


class TimelineRecorder:
    """`wall` and `now` are the same moment, in seconds since 1970 and on a monotonic clock."""

    def __init__(self, wall: float, now: float) -> None:
        self._wall, self._begun = wall, now
        self._last = 0.0  # time of the newest row
        self._pages: dict[str, _Page] = {}  # of present workers
        self._left: dict[str, _Page] = {}  # of workers that left: they may return with the same counters
        self._rows: deque[Span | Event] = deque(maxlen=UNREAD)

    def joined(self, join: Join, now: float, rests_s: float = 0.0) -> None:
        """A worker joined, perhaps again: then its counters continue. It gets no work for `rests_s`."""
        name, page = join.worker, self._pages.get(join.worker)
        if page is not None and page.pid != join.pid:
            self.gone("lost", name, now, "it started again")
            page = None
        if page is None:  # else the same process joined again
            page = self._left.pop(name, None)
            known = page is not None and page.pid == join.pid
            self._pages[name] = page if page and known else _Page(join.role, join.host, join.pid, now)
            self.event("joined", now, worker=name)
        if rests_s > 0:
            self.event("rests", now, worker=join.worker, text=f"for {rests_s:.0f} s: it died repeatedly")

    def heard(self, beat: Heartbeat, now: float) -> None:
        """Ignored for a worker that has not joined."""
        page = self._pages.get(beat.worker)
        if page is None:
            return
        counters = {name: s for name, s in seconds_of(page.role, beat.stats).items() if 0 <= s < math.inf}
        for name, grown in self._growth(page, counters, now).items():
            page.inside[name] = page.inside.get(name, 0.0) + grown
        page.counters |= counters
        page.version = beat.version if beat.version >= 0 and page.role != "reward" else None
        rate = beat.stats.get("rollout/tokens_per_s", math.nan)
        page.newest = {"tokens_per_s": round(rate, 1)} if 0 <= rate < math.inf else {}
        page.newest |= used(beat.usage) if beat.usage is not None else {}
        if now - page.begun >= self._length(now) * EARLY:
            self._close(beat.worker, page, now)

    def gone(self, kind: Kind, worker: str, now: float, text: str | None = None) -> None:
        """It left or is lost; its current row ends."""
        page = self._pages.pop(worker, None)
        if page is not None:
            self._close(worker, page, now)
            self._left[worker] = page
            if len(self._left) > REMEMBERED:
                del self._left[next(iter(self._left))]
        self.event(kind, now, worker=worker, text=text)

    def finished(self, now: float, text: str) -> None:
        """The run is over; all current rows end."""
        for name, page in self._pages.items():
            self._close(name, page, now)
        self.event("finished", now, text=text)

    def event(
        self, kind: Kind, now: float, *, worker: str | None = None, step: int | None = None, text: str | None = None
    ) -> None:
        text = text[:LONGEST_TEXT] if text else None
        self._rows.append(Event(t=self._time(now), event=kind, worker=worker, step=step, text=text))

    def drain(self) -> list[Span | Event]:
        """Rows since the last call, in order of time."""
        rows = list(self._rows)
        self._rows.clear()
        return rows

    def _growth(self, page: _Page, counters: Mapping[str, float], now: float) -> dict[str, float]:
        """Since the last heartbeat. Empty if it exceeds the recorder's age: then it is from an earlier time."""
        before = page.counters
        if any(value < before.get(name, 0.0) - JITTER_S for name, value in counters.items()):
            before = {}  # a new process
        grown = {name: max(0.0, value - before.get(name, 0.0)) for name, value in counters.items()}
        return grown if sum(grown.values()) <= now - self._begun + TOGETHER_S else {}

    def _length(self, now: float) -> float:
        """Seconds that a row covers at least."""
        workers, age = len(self._pages), now - self._begun
        return max(SHORTEST_S, workers / ROWS_A_SECOND, age * workers / ROWS)

    def _close(self, name: str, page: _Page, now: float) -> None:
        inside = {activity: round(seconds, 3) for activity, seconds in page.inside.items() if seconds >= 0.0005}
        page.begun, page.inside = now, {}
        if inside:
            self._rows.append(
                Span(
                    t=self._time(now),
                    worker=name,
                    role=page.role,
                    host=page.host,
                    s=round(sum(inside.values()), 3),
                    version=page.version,
                    inside=inside,
                    **page.newest,
                )
            )

    def _time(self, now: float) -> float:
        """Strictly increasing, so a reader can continue after the last time that it has read."""
        self._last = max(round(self._wall + now - self._begun, 3), round(self._last + 0.001, 3))
        return self._last


# Writes the timeline and the metrics into the run's folder, in the background.
#
# Invariant: a file that cannot be written never delays or ends the run. Its rows are dropped, with a warning.

log = logging.getLogger(__name__)

EVERY_S = 0.5


class TimelineWriter:
    """Writes what `timeline` has recorded."""

    def __init__(self, folder: Path) -> None:
        self.timeline = TimelineRecorder(time.time(), time.monotonic())
        self.trouble = ""  # why rows were dropped; empty: none were
        self._writer = Writer(folder)
        self._writing = asyncio.Lock()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            await self.flush()

    async def flush(self) -> None:
        """Everything recorded so far."""
        async with self._writing:
            rows = self.timeline.drain()
            if not rows:
                return
            try:
                await asyncio.to_thread(self._writer.write, rows)
                self.trouble = ""
            except OSError as error:
                if not self.trouble:
                    log.warning("the timeline could not be written, %d rows are dropped: %s", len(rows), error)
                self.trouble = f"the timeline could not be written, and is dropped: {error}"

    async def close(self) -> None:
        await self.flush()
        await asyncio.to_thread(self._writer.close)


class MetricsWriter:
    def __init__(self, file: MetricsLog, written: int = -1) -> None:
        """`written`: the last trained step with a row in the file."""
        self.trouble = ""  # why the last row was dropped; empty: it was written
        self._file = file
        self._waiting: asyncio.Queue[tuple[int, dict[str, float]]] = asyncio.Queue()
        self._last = written

    def roll_back(self, position: int) -> None:
        """Steps from `position` on are trained again."""
        self._last = min(self._last, position - 1)

    def trained(self, step: int, metrics: dict[str, float]) -> None:
        """A step's row; a repeated one is ignored."""
        if step > self._last and metrics:
            self._last = step
            self.put(step, metrics)

    def put(self, step: int, metrics: dict[str, float]) -> None:
        self._waiting.put_nowait((step, metrics))

    async def run(self) -> None:
        while True:
            step, metrics = await self._waiting.get()
            try:
                await asyncio.to_thread(self._file.write, step, metrics)
                self.trouble = ""
            except OSError as error:
                self.trouble = (
                    f"a row of metrics.jsonl (step {step} there) could not be written, and is dropped: {error}"
                )
                log.warning(self.trouble)
            self._waiting.task_done()

    async def flush(self, deadline_s: float) -> None:
        """Wait until all is written, up to the deadline."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._waiting.join(), deadline_s)

    async def close(self) -> None:
        with contextlib.suppress(OSError):  # reported when the row was written
            await asyncio.to_thread(self._file.close)
