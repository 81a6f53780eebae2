"""How fast a run usually is, and how long it took to be so again. Pure: a list of points in, seconds out.

Speed is generated tokens a second over the `WINDOW_S` that follow a moment. A run goes in steps that wait for their
longest sample, so even in peace it is not always at full speed: `calm_s` tells how long one waits for that after a
moment at which nothing happened, and is what other times are to be held against.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from statistics import median

from tests.stress.run import Point

WINDOW_S = 2.0
FULL = 0.9  # of the usual speed
EVERY_S = 1.0  # moments of the calm run that are looked at


class Pace:
    """`calm`: points of a run that nobody disturbed, ascending."""

    def __init__(self, calm: Sequence[Point]) -> None:
        busy = [point for point in calm if point.step >= 1]
        rates = [
            rate for point in busy if (rate := _rate(busy, point.at))
        ]  # who trains longer than it writes is not slow
        self.usual = median(rates) if rates else 0.0  # tokens a second
        self.calm_s: list[float] = []
        if busy:
            moments = int((busy[-1].at - busy[0].at - WINDOW_S) / EVERY_S)
            waits = [self.recovery_s(busy, busy[0].at + EVERY_S * n, float("inf")) for n in range(max(0, moments))]
            self.calm_s = [wait for wait in waits if wait is not None]

    def recovery_s(self, points: Sequence[Point], at: float, until: float) -> float | None:
        """Seconds from `at` until the run was at full speed; None: `until`, or the end, came before."""
        for point in points[bisect_left(points, at, key=lambda point: point.at) :]:
            if point.at + WINDOW_S > until:
                return None
            rate = _rate(points, point.at)
            if rate is not None and rate >= FULL * self.usual:
                return point.at - at
        return None


def _rate(points: Sequence[Point], at: float) -> float | None:
    """Tokens a second in the window that begins at `at`; None: the points end within it."""
    first = bisect_left(points, at, key=lambda point: point.at)
    last = bisect_left(points, at + WINDOW_S, key=lambda point: point.at)
    if last >= len(points) or first == last:
        return None
    return max(0, points[last].tokens - points[first].tokens) / (points[last].at - points[first].at)
