"""The trainer in virtual time: it computes one group after another, each in proportion to its tokens."""

from __future__ import annotations

from collections.abc import Iterable

from rhymed.messages import SampleId
from rhymed_broker.ledger.actions import Begin, Train
from rhymed_broker.simulate.workload import Workload


class Trainer:
    """`step_s`: seconds that a whole step takes."""

    def __init__(self, workload: Workload, step_s: float) -> None:
        self._workload, self._step_s = workload, step_s
        self._free_at = 0.0
        self._step, self._done, self._total = -1, 0, 1  # tokens of this step: begun with, of all its samples

    def begin(self, now: float, order: Begin) -> None:
        """These samples, while others of the step are still generated."""
        if order.step != self._step:
            self._step, self._done = order.step, 0
            self._total = self._tokens(self._workload.plan.samples(order.step))
        tokens = self._tokens(order.ids)
        self._done += tokens
        self._free_at = max(self._free_at, now) + self._step_s * tokens / self._total

    def train(self, now: float, order: Train) -> float:
        """All samples of the step. Returns when it is trained."""
        left = 1.0 if order.step != self._step else max(0.0, 1 - self._done / self._tokens(order.ids))
        self._free_at = max(self._free_at, now) + self._step_s * left
        return self._free_at

    def _tokens(self, ids: Iterable[SampleId]) -> int:
        return sum(map(self._workload.length, ids))
