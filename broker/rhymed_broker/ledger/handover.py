"""Which step the trainer has, and what it said when it did not take one. Pure, part of the ledger.

Invariants: the trainer has one step at most; one that it refused it gets again at the next tick, or when a trainer
joins, not before. Version v means v trained steps.
"""

from __future__ import annotations

from typing import NamedTuple

from rhymed_broker.ledger.actions import Train
from rhymed_broker.ledger.meter import rollout_side
from rhymed_broker.ledger.samples import Samples
from rhymed_broker.ledger.workers import Workers

REFUSAL_S = 400.0  # two refusals that are further apart have nothing to do with each other


class Refusal(NamedTuple):
    """A step was given to the trainer again and again."""

    since: float
    last: float = 0.0
    why: str = ""

    def again(self, now: float, why: str) -> Refusal:
        return Refusal(self.since, now, why)


class Handover:
    def __init__(self, samples: Samples, workers: Workers) -> None:
        self.refusal: Refusal | None = None  # what the trainer said when it did not take a step
        self.last_at: float | None = None  # when a step was trained last
        self._samples, self._workers = samples, workers
        self._step: int | None = None  # that the trainer has
        self._may = True  # it did not refuse just now

    def set_back(self) -> None:
        self._step, self._may, self.last_at = None, True, None

    def try_again(self) -> None:
        self._may = True

    def hand_over(self, version: int, now: float) -> list[Train]:
        """The next step, if that is complete and the trainer free."""
        open_step, trainer = self._samples.open_steps.get(version), self._workers.trainer
        if open_step is None or trainer is None or self._step is not None or not self._may or not open_step.complete:
            return []
        self._step = open_step.step
        open_step.handed = True
        open_step.meter.handed_at = now
        ready = [sample for sample in open_step.samples.values() if sample.state == "scored"]
        self._samples.move_all(ready, "handed", now, trainer.name)
        open_step.meter.rollout = rollout_side(open_step.step, open_step.meter, open_step.samples.values())
        ids = sorted([sample.id for sample in ready], key=lambda id: (id.prompt, id.index))
        return [Train(trainer.name, open_step.step, ids, open_step.meter.rollout)]

    def done(self, now: float) -> None:
        self._step, self.last_at, self.refusal = None, now, None

    def failed(self, now: float, why: str = "") -> None:
        """It did not take the step, or is gone."""
        if why:
            before = self.refusal if self.refusal and now - self.refusal.last <= REFUSAL_S else Refusal(now)
            self.refusal = before.again(now, why)
        self._step, self._may = None, False
        self._samples.move_all(list(self._samples.queues["training"]), "returned", now)

    def refused_s(self, now: float) -> float:
        """For how long the trainer has taken no step that it was given; 0: it does."""
        told = self.refusal
        return 0.0 if told is None or now - told.last > REFUSAL_S else now - told.since
