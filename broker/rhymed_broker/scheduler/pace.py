"""How fast each engine is: seconds per token of one sample, by the number of samples that it runs. Pure.

Learned from the progress that heartbeats report. All engines share one curve over the number of samples, and each
has a factor, so that an engine that was never seen with few samples is known there too, and one whose GPU is older,
shared or throttled is recognized within a few heartbeats. The factor is learned mainly where most engines have
about as many samples (by powers of two), the curve mainly from engines with another number. Invariant: a sample is
never expected to be slower among fewer samples. Knows no lengths.
"""

from __future__ import annotations

import math
from statistics import median

FAST, LEVEL, SLOW = 0.3, 0.1, 0.03  # weights of a new observation
LEAST = 4  # tokens of a sample between two heartbeats: fewer say little
EQUAL = 1.2  # times slower than the fastest: what counts as equal


class Pace:
    """Before the first observation every sample takes one second per token, everywhere."""

    def __init__(self) -> None:
        self._factors: dict[str, float] = {}  # worker -> times slower than the curve
        self._bits: dict[str, int] = {}  # worker -> bits of samples at its last observation
        self._fastest = 1.0  # factor
        self._level = 1.0  # seconds per token: changes for all numbers of samples at once, as when drafts begin
        self._points: dict[int, tuple[float, float]] = {}  # bits of samples -> their mean number, times the level
        self._table: list[float] = []  # times the level, by samples

    @property
    def known(self) -> bool:
        return bool(self._points)

    def observe(self, worker: str, running: float, tokens: list[int], seconds: float) -> None:
        """`tokens` of each of its samples that ran during all of these seconds, among `running` ones in the mean."""
        usual = median(tokens) if tokens else 0
        if usual < LEAST or seconds <= 0 or running < 1:
            return
        seen, count = seconds / usual, round(running)
        if not self._points:
            self._level = seen
        factor, bits = seen / self._at(count), count.bit_length()
        self._bits[worker] = bits
        usual = 2 * sum(other == bits for other in self._bits.values()) > len(self._bits)
        shape, own = (SLOW, FAST) if usual else (FAST, SLOW)
        self._factors[worker] = _mixed(self._factors.get(worker, factor if usual else self._fastest), factor, own)
        self._fastest = min(self._factors.values())
        base = seen / self._factors[worker]
        mean, times = self._points.get(bits, (running, base / self._level))
        if usual:
            self._level = _mixed(self._level, base / times, LEVEL)
        self._points[bits] = _mixed(mean, running, shape), _mixed(times, base / self._level, shape)
        self._table = []

    def forget(self, worker: str) -> None:
        self._factors.pop(worker, None)
        self._bits.pop(worker, None)
        self._fastest = min(self._factors.values(), default=1.0)

    def __call__(self, worker: str, running: int) -> float:
        """Seconds per token of one of so many samples."""
        return self._factors.get(worker, self._fastest) * self._at(running)

    def slower(self, worker: str) -> float:
        """Times slower than the fastest; 1 if about as fast."""
        times = self._factors.get(worker, self._fastest) / self._fastest
        return times if times > EQUAL else 1.0

    def _at(self, running: int) -> float:
        if not self._points:
            return self._level
        if running >= len(self._table):
            most = max(mean for mean, _ in self._points.values())
            self._table = self._tabulate(max(2 * running, math.ceil(most)) + 2)
        return self._level * self._table[running]

    def _tabulate(self, size: int) -> list[float]:
        """Straight lines between the points, constant beyond them; never more than among more samples."""
        points = sorted(self._points.values())
        table, place = [], 0
        for running in range(size):
            while place < len(points) and points[place][0] < running:
                place += 1
            if place in (0, len(points)):
                table.append(points[min(place, len(points) - 1)][1])
            else:
                (x0, y0), (x1, y1) = points[place - 1], points[place]
                table.append(y0 + (y1 - y0) * (running - x0) / (x1 - x0))
        for running in range(size - 2, -1, -1):
            table[running] = min(table[running], table[running + 1])
        return table


def _mixed(old: float, new: float, weight: float) -> float:
    return old + weight * (new - old)
