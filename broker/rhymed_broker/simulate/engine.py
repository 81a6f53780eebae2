"""An engine in virtual time: each step adds one token to every running sample, and its duration is a cost curve.

Its clock counts steps. A sample that enters at clock c and needs n tokens leaves at c + n whatever else happens, so
one heap of leaving times is all the state; the number of running samples only changes the clock's speed.
"""

from __future__ import annotations

import heapq
import json
import math
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from rhymed.errors import DataError
from rhymed.messages import SampleId


class Cost:
    """Seconds of an engine step by the number of samples that it decodes: straight lines between measured points."""

    def __init__(self, points: list[tuple[float, float]]) -> None:
        """`points`: (samples, seconds), increasing. Beyond the last one the curve continues straight."""
        self._table: list[float] = []
        self._points = sorted(points)
        if not points or min(seconds for _, seconds in points) <= 0:
            raise DataError("a cost curve needs at least one point, of more than 0 seconds")

    @classmethod
    def line(cls, step_s: float, sample_s: float) -> Cost:
        return cls([(0.0, step_s), (1.0, step_s + sample_s)])

    @classmethod
    def read(cls, path: Path) -> Cost:
        """JSON: [[samples, seconds], ...]. Raises `DataError`."""
        try:
            return cls([(float(samples), float(seconds)) for samples, seconds in json.loads(path.read_bytes())])
        except (OSError, ValueError, TypeError) as error:
            raise DataError(f"{path}: not a cost curve [[samples, seconds], ...]: {error}") from None

    def __call__(self, samples: int) -> float:
        while len(self._table) <= samples:
            self._table.append(self._at(len(self._table)))
        return self._table[samples]

    def _at(self, samples: int) -> float:
        points = self._points
        place = min(max(1, bisect_left(points, (samples, 0.0))), len(points) - 1)
        if place == 0:
            return points[0][1]
        (x0, y0), (x1, y1) = points[place - 1], points[place]
        return y0 + (y1 - y0) * (samples - x0) / (x1 - x0)


@dataclass(eq=False)
class Entry:
    """A sample in an engine."""

    id: SampleId
    length: int  # response tokens
    begun: int = 0  # tokens that it enters with, verified first
    checked: float = 0.0  # engine steps for their verification
    version: int = 0  # of its oldest token
    start: float = math.inf  # on the engine's clock, when it got a slot

    @property
    def steps(self) -> float:
        return self.checked + self.length - self.begun

    def done(self, clock: float) -> int:
        """Tokens so far, on the engine's clock."""
        return min(self.length, self.begun + math.floor(max(0.0, clock - self.start - self.checked + 1e-6)))


class Engine:
    def __init__(self, slots: int, cost: Cost, slowness: float = 1.0) -> None:
        self.slots, self._cost, self._slowness = slots, cost, slowness
        self.running: dict[SampleId, Entry] = {}
        self.waiting: deque[Entry] = deque()
        self.clock = 0.0  # steps
        self.busy_s = 0.0  # slots times seconds
        self.idle_s = 0.0  # seconds without a sample
        self.changes: list[tuple[float, int]] = []  # (time, running), where `trace`
        self.trace = False
        self._leaving: list[tuple[float, int, Entry]] = []
        self._at = 0.0  # time of the clock
        self._count = 0

    def advance(self, now: float) -> None:
        passed = now - self._at
        if passed > 0:
            running = len(self.running)
            if running:
                self.clock += passed / (self._cost(running) * self._slowness)
                self.busy_s += passed * running
            else:
                self.idle_s += passed
        self._at = max(self._at, now)

    def pause(self, until: float) -> None:
        """Nothing runs until then, while weights load; call `advance` to now first."""
        self._at = until

    def add(self, entry: Entry) -> None:
        self.waiting.append(entry)
        self._fill()

    def remove(self, id: SampleId) -> Entry | None:
        """Running or waiting; None: it is not here."""
        entry = self.running.pop(id, None)
        if entry is None:
            entry = next((waiting for waiting in self.waiting if waiting.id == id), None)
            if entry is not None:
                self.waiting.remove(entry)
        else:
            self._note()
            self._fill()
        return entry

    def finished(self) -> list[Entry]:
        """Samples that leave now; waiting ones take their slots."""
        done = []
        while self._leaving and self._leaving[0][0] <= self.clock + 1e-6:
            _, _, entry = heapq.heappop(self._leaving)
            if self.running.get(entry.id) is entry:
                del self.running[entry.id]
                done.append(entry)
        if done:
            self._note()
            self._fill()
        return done

    def next_s(self) -> float | None:
        """When the next sample leaves, if nothing else happens."""
        while self._leaving and self.running.get(self._leaving[0][2].id) is not self._leaving[0][2]:
            heapq.heappop(self._leaving)
        if not self._leaving:
            return None
        steps = max(0.0, self._leaving[0][0] - self.clock)
        return self._at + steps * self._cost(len(self.running)) * self._slowness

    def _fill(self) -> None:
        while self.waiting and len(self.running) < self.slots:
            entry = self.waiting.popleft()
            entry.start = self.clock
            self.running[entry.id] = entry
            self._count += 1
            heapq.heappush(self._leaving, (self.clock + entry.steps, self._count, entry))
            self._note()

    def _note(self) -> None:
        if self.trace:
            self.changes.append((self._at, len(self.running)))
