"""The state of the user interface: the newest snapshot, a bounded history, and what the user has chosen.

Plain data, changed by `keys` and `poller`, read by `screen.paint`. A selection is kept by name, so it survives when
rows come, go or are sorted again.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from rhymed.core.messages import Drain, Group, Pause, Queues, Role, Usage, WorkerRow
from rhymed.core.run.stragglers import RATE
from rhymed.core.run.timeline import Times
from rhymed.core.service.stopwatch import WAITING, seconds_of

View = Literal["workers", "groups", "worker", "group"]
ConnectionState = Literal["waiting", "live", "silent", "ended", "finished"]
"""`waiting`: no answer yet; `silent`: it answered before, but not now; `ended`: the broker is gone."""


@dataclass(frozen=True)
class Connection:
    state: ConnectionState = "waiting"
    since: float = 0.0  # on the clock that `paint` is given
    address: str = ""


@dataclass(frozen=True)
class Question:
    """An order that must be confirmed."""

    text: tuple[str, ...]
    order: Pause | Drain


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
WORKER_SNAPSHOTS = 60  # of one worker's tokens per second
EVERY_S = 5.0  # between records of a worker's seconds
WINDOW = 12  # records that shares are computed over, and one before
REWARD, LENGTH = "reward/mean", "response_length/mean"


class History:
    def __init__(self) -> None:
        self.steps: dict[str, dict[int, float]] = {REWARD: {}, LENGTH: {}}  # metric -> step -> value
        self.rates: deque[float] = deque(maxlen=SNAPSHOTS)  # tokens per second, of all workers
        self._workers: dict[str, deque[float]] = {}  # worker -> tokens per second
        self._busy: dict[str, deque[float]] = {}  # worker -> utilization of its GPUs, or processors in use
        self._seconds: dict[str, deque[dict[str, float]]] = {}  # worker -> records of seconds by activity
        self._recorded_at = -math.inf  # in the broker's own time

    def add_steps(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Earlier steps, from metrics.jsonl, where `step` counts from 0."""
        for row in rows:
            self._keep(int(row["step"]) + 1, row)

    def add(self, queues: Queues) -> None:
        if queues.metrics:
            self._keep(queues.step, queues.metrics)
        rollouts = [row for row in queues.workers if row.role == "rollout"]
        self.rates.append(sum(row.stats.get(RATE, 0.0) for row in rollouts))
        here = {row.worker for row in queues.workers}
        for rows in (self._workers, self._busy, self._seconds):
            for name in rows.keys() - here:
                del rows[name]
        for row in rollouts:
            self._workers.setdefault(row.worker, deque(maxlen=WORKER_SNAPSHOTS)).append(row.stats.get(RATE, 0.0))
        for row in queues.workers:
            if row.usage is not None:
                self._busy.setdefault(row.worker, deque(maxlen=WORKER_SNAPSHOTS)).append(_busy(row.usage))
        if queues.uptime_s < self._recorded_at:
            self._recorded_at = -math.inf  # the broker restarted
        if queues.uptime_s - self._recorded_at >= EVERY_S:
            self._recorded_at = queues.uptime_s
            for row in queues.workers:
                self._record_seconds(row)

    def rates_of(self, worker: str) -> list[float]:
        """Tokens per second, oldest first."""
        return list(self._workers.get(worker, ()))

    def busy_of(self, worker: str) -> list[float]:
        """Utilization of its GPUs, of a worker without any the processors in use, oldest first."""
        return list(self._busy.get(worker, ()))

    def shares(self, worker: str) -> dict[str, float]:
        """Shares of the last minute by activity; they sum to 1. Empty: there are not enough records."""
        records = self._seconds.get(worker)
        if not records or len(records) < 2:
            return {}
        spent = {name: max(0.0, value - records[0].get(name, 0.0)) for name, value in records[-1].items()}
        total = sum(spent.values())
        return {name: value / total for name, value in spent.items()} if total > 0 else {}

    def idle(self, worker: str) -> float | None:
        """The share of the last minute in which it had nothing to do."""
        shares = self.shares(worker)
        return sum(value for name, value in shares.items() if name in WAITING) if shares else None

    def _record_seconds(self, row: WorkerRow) -> None:
        now = seconds_of(row.role, row.stats)
        if not now:
            return
        records = self._seconds.setdefault(row.worker, deque(maxlen=WINDOW + 1))
        if records and sum(now.values()) < sum(records[-1].values()):
            records.clear()  # the worker restarted
        records.append(now)

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


def _busy(usage: Usage) -> float:
    return usage.cpu if (share := utilization(usage)) is None else share


@dataclass
class UiState:
    queues: Queues | None = None
    history: History = field(default_factory=History)
    connection: Connection = Connection()
    times: Times | None = None  # elapsed and left; None: the run's folder is not on this machine
    run: str = ""  # arguments that name the run for other commands; empty: not needed
    absent: list[Absent] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)  # what happened to processes, oldest first
    view: View = "workers"
    back_stack: list[View] = field(default_factory=list)  # where Esc goes back to
    worker: str = ""  # of the worker view
    prompt: tuple[int, str] = (0, "")  # step and prompt of the group view
    group: Group | None = None  # the last known state
    step_done: bool = False  # the group's step is no longer open
    sorts: dict[View, tuple[str, bool]] = field(default_factory=dict)  # column, reversed
    selected: dict[View, str] = field(default_factory=dict)
    first: dict[View, int] = field(default_factory=dict)  # row at the top
    filter: str = ""
    typing: bool = False  # the filter is being typed
    help_shown: bool = False
    question: Question | None = None
    note: str = ""  # the result of the last order, or why a key did nothing
    is_error: bool = False  # the note is an error

    def set_note(self, note: str, *, is_error: bool = False) -> None:
        self.note, self.is_error = note, is_error

    def enter(self, view: View) -> None:
        """Esc goes back to the present view."""
        self.back_stack.append(self.view)
        self.view = view

    def back(self) -> None:
        self.view = self.back_stack.pop() if self.back_stack else "workers"
