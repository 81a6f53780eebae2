"""A stopwatch over activities: cumulative seconds, one activity at a time, without gaps.

Invariant: at every moment the seconds of all activities add up to the time since the stopwatch was made, and none
ever shrinks. Thread-safe. Pure: the clock is an argument. Does not know the names of activities.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Stopwatch:
    """Runs from the start, with `activity`. `clock` returns seconds and must not go back."""

    def __init__(self, activity: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._totals: dict[str, float] = {}
        self._base = self._current = activity
        self._blocks: list[str] = []  # `during` blocks that are open, the newest last
        self._since = clock()

    def enter(self, activity: str) -> None:
        """The activity from now on, except within `during` blocks."""
        with self._lock:
            self._base = activity
            self._settle()

    @contextmanager
    def during(self, activity: str) -> Iterator[None]:
        """The activity within the block. Blocks may overlap in any order, on several threads: the newest counts."""
        with self._lock:
            self._blocks.append(activity)
            self._settle()
        try:
            yield
        finally:
            with self._lock:
                del self._blocks[len(self._blocks) - 1 - self._blocks[::-1].index(activity)]
                self._settle()

    def read(self) -> dict[str, float]:
        """Seconds by activity up to now; activities that did not occur are missing."""
        with self._lock:
            self._settle()
            return dict(self._totals)

    def _settle(self) -> None:
        now = self._clock()
        self._totals[self._current] = self._totals.get(self._current, 0.0) + now - self._since
        self._since = now
        self._current = self._blocks[-1] if self._blocks else self._base
