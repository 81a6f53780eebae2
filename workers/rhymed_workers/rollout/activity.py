"""Where a rollout worker's time goes: the engine's own account, and weight updates as the worker sees them.

Invariant: the seconds of all activities add up to the time since the timesheet was made. While the engine loads new
weights all time is `update`; while they are fetched, only the time that the engine is idle. Knows no engine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

from rhymed.service.activities import stats_of

EngineSeconds = Callable[[], Mapping[str, float]]
"""Busy seconds by activity since the engine started, those of the present activity up to now."""

Phase = Literal["fetching", "loading"]
"""Of an update. While weights are fetched the engine may work; while it loads them its requests wait."""


class Timesheet:
    """`engine_seconds` may be set later: until then there is no engine, and all time is idle."""

    def __init__(
        self, engine_seconds: EngineSeconds | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.engine_seconds = engine_seconds
        self._clock = clock
        self._at = clock()
        self._totals = {"idle": 0.0, "update": 0.0}
        self._last: dict[str, float] = {}  # the engine's seconds at the last reading
        self._phase: Phase | None = None

    def stats(self) -> dict[str, float]:
        """For `Heartbeat.stats`."""
        self._settle()
        return stats_of("rollout", self._totals)

    @contextmanager
    def during(self, phase: Phase) -> Iterator[None]:
        """One phase at a time."""
        self._settle()
        self._phase = phase
        try:
            yield
        finally:
            self._settle()
            self._phase = None

    def _settle(self) -> None:
        """Account for the time since the last call. The engine's seconds never count for more than our clock's."""
        seconds = self.engine_seconds() if self.engine_seconds else {}
        now = self._clock()
        passed, self._at = now - self._at, now
        busy = {name: max(0.0, total - self._last.get(name, 0.0)) for name, total in seconds.items()}
        self._last.update(seconds)
        if self._phase == "loading":
            self._totals["update"] += passed
            return
        total = sum(busy.values())
        share = min(1.0, passed / total) if total > 0 else 0.0
        for name, part in busy.items():
            self._totals[name] = self._totals.get(name, 0.0) + part * share
        self._totals["update" if self._phase else "idle"] += max(0.0, passed - total * share)
