"""What the snapshots of the last minutes told, as far as a screen draws it. Bounded, and pure: snapshots come in.

Rewards and lengths are kept by step, so a step that was missed leaves a gap and one that is trained again replaces
its first value. Seconds by activity only grow in a worker's process; a smaller number begins anew.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from rhymed.activities import WAITING, seconds_of
from rhymed.cli.queues import RATE
from rhymed.messages import Queues, WorkerRow

STEPS = 512  # of reward and length
SNAPSHOTS = 240  # of tokens a second of all workers
LATELY = 60  # snapshots of one worker's
EVERY_S = 5.0  # between two looks at a worker's seconds
WINDOW = 12  # of these looks, and the one before
REWARD, LENGTH = "reward/mean", "response_length/mean"


class History:
    def __init__(self) -> None:
        self.steps: dict[str, dict[int, float]] = {REWARD: {}, LENGTH: {}}  # metric -> step -> value
        self.rates: deque[float] = deque(maxlen=SNAPSHOTS)  # tokens a second, of all workers
        self._workers: dict[str, deque[float]] = {}  # worker -> tokens a second
        self._seconds: dict[str, deque[dict[str, float]]] = {}  # worker -> seconds by activity, some s apart
        self._looked = -math.inf  # at the seconds; in the broker's own time

    def before(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Steps that were trained before we came, as in metrics.jsonl: `step` counts from 0 there."""
        for row in rows:
            self._keep(int(row["step"]) + 1, row)

    def add(self, queues: Queues) -> None:
        """The newest snapshot."""
        if queues.metrics:
            self._keep(queues.step, queues.metrics)
        crew = [row for row in queues.workers if row.role == "rollout"]
        self.rates.append(sum(row.stats.get(RATE, 0.0) for row in crew))
        here = {row.worker for row in queues.workers}
        for known in (self._workers, self._seconds):
            for name in known.keys() - here:
                del known[name]
        for row in crew:
            self._workers.setdefault(row.worker, deque(maxlen=LATELY)).append(row.stats.get(RATE, 0.0))
        if queues.uptime_s < self._looked:
            self._looked = -math.inf  # another broker's time
        if queues.uptime_s - self._looked >= EVERY_S:
            self._looked = queues.uptime_s
            for row in queues.workers:
                self._look(row)

    def rates_of(self, worker: str) -> list[float]:
        """Tokens a second, oldest first."""
        return list(self._workers.get(worker, ()))

    def shares(self, worker: str) -> dict[str, float]:
        """What it did with the last minute, by activity; sums to 1. Empty: it has not told for long enough."""
        looks = self._seconds.get(worker)
        if not looks or len(looks) < 2:
            return {}
        spent = {name: max(0.0, value - looks[0].get(name, 0.0)) for name, value in looks[-1].items()}
        total = sum(spent.values())
        return {name: value / total for name, value in spent.items()} if total > 0 else {}

    def idle(self, worker: str) -> float | None:
        """The share of the last minute in which it had nothing to do."""
        shares = self.shares(worker)
        return sum(value for name, value in shares.items() if name in WAITING) if shares else None

    def _look(self, row: WorkerRow) -> None:
        now = seconds_of(row.role, row.stats)
        if not now:
            return
        looks = self._seconds.setdefault(row.worker, deque(maxlen=WINDOW + 1))
        if looks and sum(now.values()) < sum(looks[-1].values()):
            looks.clear()  # a new process
        looks.append(now)

    def _keep(self, step: int, row: Mapping[str, Any]) -> None:
        for name, values in self.steps.items():
            value = row.get(name)
            if isinstance(value, int | float) and math.isfinite(value):
                values[step] = float(value)
                if len(values) > STEPS:
                    del values[min(values)]

    def series(self, name: str) -> list[float]:
        """By step, oldest first."""
        values = self.steps[name]
        return [values[step] for step in sorted(values)]
