"""What is looked at, and how: the newest snapshot, what came before it, and what the person at the keys has chosen.

Plain data, changed by `control` (keys) and `app` (snapshots), read by `paint`. What is selected is kept by name, so
it stays selected when rows come, go or are sorted anew.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rhymed.messages import Drain, Group, Pause, Queues, WorkerRow
from rhymed.run.stragglers import RATE
from rhymed.service.activities import WAITING, seconds_of

View = Literal["workers", "groups", "worker", "group"]
State = Literal["waiting", "live", "silent", "ended", "finished"]
"""`waiting`: nobody has answered yet; `silent`: somebody did, and does not now; `ended`: the broker is gone."""


@dataclass(frozen=True)
class Link:
    """How it stands with the broker."""

    state: State = "waiting"
    since: float = 0.0  # on the clock that `paint` is given
    address: str = ""


@dataclass(frozen=True)
class Question:
    """What has to be confirmed before it is done."""

    text: tuple[str, ...]
    order: Pause | Drain


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


@dataclass
class Look:
    queues: Queues | None = None
    history: History = field(default_factory=History)
    link: Link = Link()
    run: str = ""  # what other commands are told to have the same run; empty: they have it anyway
    view: View = "workers"
    trail: list[View] = field(default_factory=list)  # where Esc leads back to
    worker: str = ""  # that is looked into
    prompt: tuple[int, str] = (0, "")  # step and prompt of the group that is looked into
    group: Group | None = None  # as the broker told it last
    past: bool = False  # the group's step is not open any more: `group` is the last picture of it
    sorts: dict[View, tuple[str, bool]] = field(default_factory=dict)  # column, reversed
    selected: dict[View, str] = field(default_factory=dict)
    first: dict[View, int] = field(default_factory=dict)  # row at the top
    filter: str = ""
    typing: bool = False  # the filter is being written
    helping: bool = False
    question: Question | None = None
    note: str = ""  # what came of the last order, or what a key could not do
    wrong: bool = False  # the note is an error

    def say(self, note: str, *, wrong: bool = False) -> None:
        self.note, self.wrong = note, wrong

    def go(self, view: View) -> None:
        """Esc leads back here."""
        self.trail.append(self.view)
        self.view = view

    def back(self) -> None:
        self.view = self.trail.pop() if self.trail else "workers"
