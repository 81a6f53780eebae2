"""How many rollout workers the waiting samples occupy. Pure: counts and times in, a count out."""

from __future__ import annotations

from collections import deque

from rhymed.config import Config


class Demand:
    """More workers are wanted at once; fewer only after they were enough for `placement.idle_s`, because every step
    ends with few samples, and the next one begins with many."""

    def __init__(self, config: Config, now: float) -> None:
        placement = config.placement
        self._least, self._most, self._idle_s = placement.min, placement.max, placement.idle_s
        self._each = config.rollout.max_concurrency
        self._seen = deque([(now, config.rollout.workers)])  # times and needs, largest first

    def wanted(self, samples: int, now: float) -> int:
        """`samples`: waiting or being generated."""
        need = min(self._most, max(self._least, -(-samples // self._each)))
        while self._seen and (self._seen[-1][1] <= need):
            self._seen.pop()
        self._seen.append((now, need))
        while self._seen[0][0] < now - self._idle_s:
            self._seen.popleft()
        return self._seen[0][1]
