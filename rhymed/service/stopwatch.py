"""A stop-watch over activities: cumulative seconds, one activity at a time, without gaps.

Invariant: the seconds of all activities add up to the time since the watch was made, at every moment, and none ever
shrinks. Safe to use from several threads. Pure: the clock is given in, and what an activity is it does not know.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Seconds:
    """Runs from the start, with `activity`. `clock` gives seconds and must not go back."""

    def __init__(self, activity: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._totals: dict[str, float] = {}
        self._ground = self._now = activity
        self._during: list[str] = []  # begun and not ended, the newest last
        self._since = clock()

    def enter(self, activity: str) -> None:
        """From now on it is this, except while something is `during`."""
        with self._lock:
            self._ground = activity
            self._settle()

    @contextmanager
    def during(self, activity: str) -> Iterator[None]:
        """It is this within the block. Blocks may overlap in any order, on several threads: the newest counts."""
        with self._lock:
            self._during.append(activity)
            self._settle()
        try:
            yield
        finally:
            with self._lock:
                place = len(self._during) - 1 - self._during[::-1].index(activity)
                del self._during[place]
                self._settle()

    def read(self) -> dict[str, float]:
        """Seconds by activity, those of the present one up to now; activities that never were are missing."""
        with self._lock:
            self._settle()
            return dict(self._totals)

    def _settle(self) -> None:
        now = self._clock()
        self._totals[self._now] = self._totals.get(self._now, 0.0) + now - self._since
        self._since = now
        self._now = self._during[-1] if self._during else self._ground
