"""Where a process's time goes: `Stopwatch` measures it, and `watch_progress` detects a standstill.

The stopwatch has cumulative seconds, of one activity at a time, without gaps. Invariant: at every moment the seconds
of all activities add up to the time since the stopwatch was made, and none ever shrinks. Thread-safe. Pure: the clock
is an argument. Does not know the names of activities.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rhymed.core.errors import RhymedError


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


# Detects work that neither progresses nor fails.

CHECKS = 20  # within the patience; a process that was stopped meanwhile does not count the time


async def watch_progress(state: Callable[[], object], patience_s: float, error: RhymedError) -> None:
    """Raises `error` when `state` has not changed for `patience_s`; None: there is no work."""
    seen: object = None
    silent = 0
    while True:
        await asyncio.sleep(patience_s / CHECKS)
        now = state()
        silent = silent + 1 if now is not None and now == seen else 0
        seen = now
        if silent >= CHECKS:
            raise error


# Activities of workers: their names, order and colours.
#
# Every worker reports its seconds by activity as `seconds/<activity>` (docs/metrics.md). The order is that of a
# stacked bar: work first, waiting last. No two activities of a role have similar colours, on white or near-black, for
# the colour-blind too; waiting is grey everywhere. Knows neither clocks nor workers.

PREFIX = "seconds/"
"""Before an activity's name in `Heartbeat.stats`."""

ACTIVITIES: dict[str, tuple[str, ...]] = {
    "rollout": ("verify", "decode", "prefill", "draft", "update", "idle"),
    "environment": ("act", "idle"),
    "reward": ("score", "idle"),
    "trainer": ("train", "load", "publish", "checkpoint", "wait"),
}
"""By role, in the order of a stacked bar."""

HEX = {
    "verify": "#008a6e",
    "decode": "#313fb7",
    "prefill": "#5699ff",
    "draft": "#f4a571",
    "update": "#b44f13",
    "act": "#007fa8",
    "score": "#b88e05",
    "train": "#934ab5",
    "load": "#d0b700",
    "publish": "#f90e5d",
    "checkpoint": "#7a3655",
    "idle": "#9aa0a6",
    "wait": "#9aa0a6",
}
"""For the web and for plots."""


def seconds_of(role: str, stats: Mapping[str, float]) -> dict[str, float]:
    """From a worker's heartbeat, in the order of its role; activities that it did not report are missing."""
    return {name: stats[PREFIX + name] for name in ACTIVITIES.get(role, ()) if PREFIX + name in stats}


def stats_of(role: str, seconds: Mapping[str, float]) -> dict[str, float]:
    """For `Heartbeat.stats`: every activity of the role, 0 if it did not occur."""
    return {PREFIX + name: seconds.get(name, 0.0) for name in ACTIVITIES[role]}
