"""What a terminal shows of a run: the newest snapshot, a bounded history, and how it stands with the broker.

Plain data, changed by whoever asks the broker, read by `screen.picture`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from rhymed.core.messages import Queues, Role, Usage
from rhymed.core.run.stragglers import RATE
from rhymed.core.run.timeline import Times

ConnectionState = Literal["waiting", "live", "silent", "ended", "finished"]
"""`waiting`: no answer yet; `silent`: it answered before, but not now; `ended`: the broker is gone."""


class Connection(NamedTuple):
    state: ConnectionState = "waiting"
    since: float = 0.0  # on the clock that `picture` is given


class Absent(NamedTuple):
    """A process that was started and has not joined the run yet."""

    role: Role
    name: str
    seconds: float

    @property
    def phase(self) -> str:
        return f"start ({LOADS[self.role]}, {self.seconds:.0f} s)"


LOADS: dict[Role, str] = {
    "rollout": "loads the engine",
    "trainer": "loads the model",
    "environment": "starts",
    "reward": "starts",
}
STEPS = 512  # of reward and length
SNAPSHOTS = 240  # of all workers' tokens per second
REWARD, LENGTH = "reward/mean", "response_length/mean"


class History:
    def __init__(self) -> None:
        self.steps: dict[str, dict[int, float]] = {REWARD: {}, LENGTH: {}}  # metric -> step -> value
        self.rates: deque[float] = deque(maxlen=SNAPSHOTS)  # tokens per second, of all workers

    def add_steps(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Earlier steps, from metrics.jsonl, where `step` counts from 0."""
        for row in rows:
            self._keep(int(row["step"]) + 1, row)

    def add(self, queues: Queues) -> None:
        if queues.metrics:
            self._keep(queues.step, queues.metrics)
        self.rates.append(sum(row.stats.get(RATE, 0.0) for row in queues.workers if row.role == "rollout"))

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


def utilization(usage: Usage | None) -> float | None:
    """Of a worker's GPUs, the mean; None: not known, or it uses none."""
    known = [gpu.utilization for gpu in (usage.gpus if usage else ()) if gpu.utilization is not None]
    return sum(known) / len(known) if known else None


@dataclass
class Shown:
    queues: Queues | None = None
    history: History = field(default_factory=History)
    connection: Connection = field(default_factory=Connection)
    times: Times | None = None  # elapsed and left; None: the run's folder is not on this machine
    absent: list[Absent] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)  # what happened to processes, oldest first

    def answered(self, queues: Queues, now: float, times: Times | None) -> None:
        self.queues, self.times = queues, times
        self.history.add(queues)
        self.connection = Connection("finished" if queues.finished else "live", now)

    def unanswered(self, now: float, *, ended: bool = False) -> None:
        """A finished run stays finished. `silent` counts from the last answer, `ended` from now."""
        if ended and self.connection.state not in ("ended", "finished"):
            self.connection = Connection("ended", now)
        elif self.connection.state == "live":
            self.connection = Connection("silent", self.connection.since)
