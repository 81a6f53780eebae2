"""Where a rollout worker's time went: the engine's own account, and weight updates as the worker sees them.

Invariant: the seconds of all activities add up to the time since the sheet was begun. While the engine takes new
weights everything is `update`; while they are fetched, what the engine left idle is. Knows no engine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

from rhymed.service.activities import stats_of

Account = Callable[[], Mapping[str, float]]
"""Busy seconds by activity since the engine began, those of the present activity up to now."""

Phase = Literal["fetching", "loading"]
"""Of an update: new weights are on their way, and the engine may work meanwhile; it takes them, and requests wait."""


class Timesheet:
    """`account` may be given later: until then there is no engine, and time is idle."""

    def __init__(self, account: Account | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.account = account
        self._clock = clock
        self._at = clock()
        self._totals = {"idle": 0.0, "update": 0.0}
        self._seen: dict[str, float] = {}  # the engine's account, when it was read last
        self._phase: Phase | None = None

    def stats(self) -> dict[str, float]:
        """As they are told in heartbeats."""
        self._look()
        return stats_of("rollout", self._totals)

    @contextmanager
    def during(self, phase: Phase) -> Iterator[None]:
        """One phase at a time."""
        self._look()
        self._phase = phase
        try:
            yield
        finally:
            self._look()
            self._phase = None

    def _look(self) -> None:
        """Settle the time since the last look. What the engine's account is ahead of our clock is left out."""
        told = self.account() if self.account else {}
        now = self._clock()
        passed, self._at = now - self._at, now
        busy = {name: max(0.0, seconds - self._seen.get(name, 0.0)) for name, seconds in told.items()}
        self._seen.update(told)
        if self._phase == "loading":
            self._totals["update"] += passed
            return
        whole = sum(busy.values())
        part = min(1.0, passed / whole) if whole > 0 else 0.0
        for name, seconds in busy.items():
            self._totals[name] = self._totals.get(name, 0.0) + seconds * part
        self._totals["update" if self._phase else "idle"] += max(0.0, passed - whole * part)
