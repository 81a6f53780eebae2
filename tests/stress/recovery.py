"""A run's usual speed, and the time until it reaches it again after a fault. Pure: points in, seconds out.

Speed is generated tokens per second over the next `WINDOW_S`. A step waits for its longest sample, so even a calm run
is not always at full speed: `calm_s` has the waits for full speed at moments without a fault, for comparison.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from statistics import median

from tests.stress.run import Point

WINDOW_S = 2.0
FULL = 0.9  # of the usual speed
EVERY_S = 1.0  # between the moments of the calm run that are measured


class Throughput:
    """`calm`: points of a run without faults, ascending."""

    def __init__(self, calm: Sequence[Point]) -> None:
        busy = [point for point in calm if point.step >= 1]
        rates = [rate for point in busy if (rate := _rate(busy, point.at))]  # None: only training
        self.usual = median(rates) if rates else 0.0  # tokens per second
        self.samples = max((point.samples for point in calm), default=0)
        self.calm_s: list[float] = []
        if busy:
            moments = int((busy[-1].at - busy[0].at - WINDOW_S) / EVERY_S)
            waits = [self.recovery_s(busy, busy[0].at + EVERY_S * n, float("inf")) for n in range(max(0, moments))]
            self.calm_s = [wait for wait in waits if wait is not None]

    def recovery_s(self, points: Sequence[Point], at: float, until: float) -> float | None:
        """Seconds from `at` until full speed; None: `until`, or the end, came before."""
        for point in points[bisect_left(points, at, key=lambda point: point.at) :]:
            if point.at + WINDOW_S > until:
                return None
            rate = _rate(points, point.at)
            if rate is not None and rate >= FULL * self.usual:
                return point.at - at
        return None


def _rate(points: Sequence[Point], at: float) -> float | None:
    """Tokens per second in the window that begins at `at`; None: the points end within it."""
    first = bisect_left(points, at, key=lambda point: point.at)
    last = bisect_left(points, at + WINDOW_S, key=lambda point: point.at)
    if last >= len(points) or first == last:
        return None
    return max(0, points[last].tokens - points[first].tokens) / (points[last].at - points[first].at)
