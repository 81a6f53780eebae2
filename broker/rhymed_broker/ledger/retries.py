"""What comes back from a worker, and whether others may go on with it. Pure, as the ledger whose part it is.

A sample may fail so often; then it is dropped with the reason. That workers die with it may be its fault only where
it came no further: else the long samples, which meet most deaths, would be the ones that are lost. And even then most
that share the fate of a bad one are innocent. So one with which workers died too often is first a *suspect*: no
worker gets two of them, a new token clears it, and it is dropped when workers go on dying with it as the only one.
What neither advances nor comes back is taken from its worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

from rhymed.messages import SampleId
from rhymed_broker.ledger.actions import Cancel
from rhymed_broker.ledger.samples import Samples
from rhymed_broker.ledger.workers import Worker, Workers
from rhymed_broker.states import Sample, State

Blame = Literal["sample", "worker", "nobody"]

PROOFS = 2  # deaths with it as the only suspect

TAKEN: tuple[State, ...] = ("running", "scoring")


class Retries:
    """`settled` is told of the step of every sample that is dropped."""

    def __init__(
        self,
        samples: Samples,
        workers: Workers,
        settled: Callable[[int, float], None],
        *,
        max_retries: int,
        max_losses: int,
        missing_after_s: float,
        stuck_after_s: float,
    ) -> None:
        self._samples, self._workers, self._settled = samples, workers, settled
        self.max_retries = max_retries
        self.max_losses = max_losses
        self.missing_after_s = missing_after_s  # a worker does not mention a sample that it was given: it goes on
        self.stuck_after_s = stuck_after_s

    def lost(self, worker: Worker, why: str, now: float, blame: Blame, keep: frozenset[SampleId]) -> None:
        """Its worker is gone: everything that it held goes to others. `keep`: what it has still got."""
        held = list(worker.held.values())
        alone = sum(sample in self._samples.suspects for sample in held) <= 1
        for sample in held:
            mine: Blame = "nobody" if sample.id in keep else blame
            if mine == "worker" and sample in self._samples.suspects and not alone:
                mine = "nobody"
            self.back(sample, why, now, mine)

    def back(self, sample: Sample, why: str, now: float, blame: Blame) -> None:
        """Others go on with it, unless it is to blame too often."""
        sample.failures += blame == "sample"
        if blame == "worker":
            self._suspect(sample)
        sample.begun = True
        if sample.failures > self.max_retries:
            self.drop(sample, f"given up after {sample.failures} tries: {why}", now)
        elif sample.losses >= self.max_losses + PROOFS:
            self.drop(sample, f"given up after {sample.losses} workers died with it: {why}", now)
        else:
            self._workers.release(sample, now)
            sample.released = 0.0
            self._samples.move(sample, "returned", now, why)

    def _suspect(self, sample: Sample) -> None:
        sample.losses = 1 if sample.tokens > sample.furthest else sample.losses + 1
        sample.furthest = max(sample.furthest, sample.tokens)
        if sample.losses >= self.max_losses:
            self._samples.suspects[sample] = None
        else:
            self._samples.suspects.pop(sample, None)

    def clear(self, sample: Sample) -> None:
        """It has come further: it is not what kills workers."""
        if sample.losses and sample.tokens > sample.furthest:
            self.acquit(sample)

    def acquit(self, sample: Sample) -> None:
        sample.losses = 0
        self._samples.suspects.pop(sample, None)

    def drop(self, sample: Sample, reason: str, now: float) -> None:
        self._workers.release(sample, now)
        self._samples.suspects.pop(sample, None)
        self._samples.drop(sample, reason, now)
        self._settled(sample.id.step, now)

    def reclaim(self, worker: Worker, missing: set[SampleId], now: float) -> None:
        """It does not mention these: after a while they go to others."""
        worker.missing = {id: worker.missing.get(id, now) for id in missing}
        late = sorted(id for id, since in worker.missing.items() if now - since > self.missing_after_s)
        for id in late:
            self.back(worker.held[id], f"{worker.name} does not have it", now, "nobody")

    def stuck(self, now: float) -> Iterator[tuple[State, Sample, float]]:
        """What has not advanced for very long: its state, and for how many seconds."""
        for state in TAKEN:
            for sample in list(self._samples.queues[state]):
                if now - sample.since <= self.stuck_after_s:
                    break  # they came here in this order
                worker = self._workers.by_name[sample.worker]
                still_s = now - max(sample.since, sample.advanced)
                if still_s > self.stuck_after_s and sample.id not in worker.parked:
                    yield state, sample, still_s

    def free_stuck(self, now: float) -> list[Cancel]:
        """Take it from its worker: another may do it, or it is dropped in the end."""
        cancels = []
        for state, sample, still_s in self.stuck(now):
            if state == "running":
                cancels.append(Cancel(sample.worker, [sample.id]))
            self.back(sample, f"{sample.worker}: {state} for {still_s:.0f} s without a change", now, "sample")
        return cancels
