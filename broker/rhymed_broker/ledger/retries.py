"""What happens to samples that come back from a worker, and who is blamed. Pure, part of the ledger.

A sample whose response, turn, answer or score fails more than `max_retries` times is dropped with the reason, but no
worker drops a sample alone while others are here: they try it first, even if a policy dealt it to that worker. A
sample that the store lacks, though a worker reported it, is no failure: it is generated again, and that worker rests.
A worker's death counts against a sample only if the sample made no progress since the last one; otherwise long
samples, which see most deaths, would be lost.
Most samples on a worker that a bad one killed are innocent. So a sample with which `max_losses` workers died is first
a *suspect*: no worker gets two suspects, a new token clears it, and it is dropped when `PROOFS` more workers die with
it as their only suspect. A sample without progress for `stuck_after_s` is taken from its worker (`Rules.still_s`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from rhymed.core.messages import Role, SampleId
from rhymed_broker.ledger.actions import Cancel
from rhymed_broker.ledger.samples import Samples
from rhymed_broker.ledger.workers import Rest, Worker, Workers
from rhymed_broker.states import Rules, Sample, State

Blame = Literal["sample", "worker", "none"]

PROOFS = 2  # deaths with it as the only suspect

TAKEN: tuple[State, ...] = ("running", "acting", "scoring")


class Retries:
    def __init__(self, samples: Samples, workers: Workers, rules: Rules) -> None:
        self._samples, self._workers, self._rules = samples, workers, rules

    def given_back(
        self,
        name: str,
        ids: Iterable[SampleId],
        reason: str,
        now: float,
        *,
        retry: bool = True,
        blame: Blame = "sample",
        moved: bool = False,
    ) -> None:
        """A worker gives samples back, or could not be sent them. `retry`: False: a worker like it would fail again.

        `moved`: the worker was asked to release them, and the store has their tokens so far.
        """
        worker = self._workers.by_name.get(name)
        if worker is None:
            return
        ids = list(ids)
        held = [sample for id in ids if (sample := worker.held.get(id))]
        self._samples.counts["unheld"] += len(ids) - len(held)
        for sample in held:
            sample.handovers += moved
            if retry or not self._drops(sample, worker):
                self.back(sample, f"{name}: {reason}", now, "none" if moved else blame)
            else:
                self.drop(sample, reason, now)
        if held and not moved:
            # until the next tick, or it would get the same samples at once
            self._workers.rest(worker, worker.rest or Rest())

    def lost(self, worker: Worker, why: str, now: float, blame: Blame, keep: frozenset[SampleId]) -> None:
        """The worker is gone: its samples go to others. `keep`: those that it still has, which are not blamed."""
        held = list(worker.held.values())
        alone = sum(sample in self._samples.suspects for sample in held) <= 1
        for sample in held:
            blamed: Blame = "none" if sample.id in keep else blame
            if blamed == "worker" and sample in self._samples.suspects and not alone:
                blamed = "none"
            self.back(sample, why, now, blamed)

    def back(self, sample: Sample, why: str, now: float, blame: Blame) -> None:
        """Other workers may continue it, unless it was blamed too often."""
        is_hopeless = blame == "sample" and self._fails(sample)
        if blame == "worker":
            self._suspect(sample)
        sample.begun = True
        if is_hopeless:
            self.drop(sample, f"given up after {sample.tries} tries: {why}", now)
        elif sample.losses >= self._rules.max_losses + PROOFS:
            self.drop(sample, f"given up after {sample.losses} workers died with it: {why}", now)
        else:
            self._workers.release(sample, now)
            sample.released = 0.0
            self._samples.move(sample, "returned", now, why)
            if blame == "sample" and sample.failed_on and sample.state == "waiting":
                self._send_elsewhere(sample)

    def _send_elsewhere(self, sample: Sample) -> None:
        """To a worker that has not failed on it, whatever the policy would do."""
        if untried := [one for one in self._able("rollout") if one.name not in sample.failed_on]:
            sample.goal = min(untried, key=lambda one: len(one.held) - one.slots).name
            self._samples.moving[sample] = None

    def _fails(self, sample: Sample) -> bool:
        """Its worker failed on it. True: it is given up."""
        worker = self._workers.by_name.get(sample.worker)
        sample.failures, sample.tries = sample.failures + 1, sample.tries + 1
        return sample.tries > self._rules.max_retries and (worker is None or self._drops(sample, worker))

    def _drops(self, sample: Sample, worker: Worker) -> bool:
        """Whether enough workers failed on it, this one included: one more than retries are allowed, or all."""
        sample.failed_on |= {worker.name}
        return len(sample.failed_on) >= min(self._rules.max_retries + 1, len(self._able(worker.role)))

    def _able(self, role: Role) -> list[Worker]:
        return [worker for worker in self._workers.of_role(role) if not worker.drained]

    def unstored(self, sample: Sample, now: float) -> None:
        """The store lacks it: it is generated again, and the worker that reported it rests."""
        author = next((who for _, event, who in reversed(sample.story) if event == "generated"), "")
        self._workers.release(sample, now)
        sample.length = sample.learned = sample.oldest = sample.tokens = sample.before = sample.earlier = 0
        sample.drafting, sample.ahead, sample.released, sample.begun = None, (0, 0), 0.0, True
        self._samples.open_steps[sample.id.step].meter.reopen()
        self._samples.move(sample, "unstored", now, author)
        if worker := self._workers.by_name.get(author):
            self._workers.distrust(worker, now)

    def _suspect(self, sample: Sample) -> None:
        sample.losses = 1 if sample.tokens > sample.furthest else sample.losses + 1
        sample.furthest = max(sample.furthest, sample.tokens)
        if sample.losses >= self._rules.max_losses:
            self._samples.suspects[sample] = None
        else:
            self._samples.suspects.pop(sample, None)

    def clear(self, sample: Sample) -> None:
        """A sample that made progress is not what kills workers."""
        if sample.losses and sample.tokens > sample.furthest:
            self.acquit(sample)

    def succeeded(self, sample: Sample) -> None:
        """A worker did its part: tries of the next one, of any role, are counted from 0."""
        sample.tries, sample.failed_on = 0, frozenset()
        self.acquit(sample)

    def acquit(self, sample: Sample) -> None:
        sample.losses = 0
        self._samples.suspects.pop(sample, None)

    def drop(self, sample: Sample, reason: str, now: float) -> None:
        self._workers.release(sample, now)
        self._samples.suspects.pop(sample, None)
        self._samples.drop(sample, reason, now)
        self._samples.open_steps[sample.id.step].note(now, self._workers.occupancy)

    def reclaim(self, worker: Worker, missing: set[SampleId], now: float) -> None:
        """The worker does not report these: after a while they go to others."""
        worker.missing = {id: worker.missing.get(id, now) for id in missing}
        late = sorted(id for id, since in worker.missing.items() if now - since > self._rules.missing_after_s)
        for id in late:
            self.back(worker.held[id], f"{worker.name} does not have it", now, "none")

    def stuck(self, now: float) -> Iterator[tuple[State, Sample, float]]:
        """Samples without progress for too long: (state, sample, seconds)."""
        for state in TAKEN:
            limit_s = self._rules.still_s(state)
            for sample in list(self._samples.queues[state]):
                if now - sample.since <= limit_s:
                    break  # the queue is in the order of `since`
                worker = self._workers.by_name[sample.worker]
                still_s = now - max(sample.since, sample.advanced, worker.engine.woken_at)
                waits = worker.engine.state in ("asleep", "waking") or sample.id in worker.parked
                if still_s > limit_s and not waits:
                    yield state, sample, still_s

    def free_stuck(self, now: float) -> list[Cancel]:
        """Takes them from their workers; another failure, or the last one, counts."""
        cancels = []
        for state, sample, still_s in self.stuck(now):
            if state == "running":
                cancels.append(Cancel(sample.worker, [sample.id]))
            self.back(sample, f"{sample.worker}: {state} for {still_s:.0f} s without a change", now, "sample")
        return cancels
