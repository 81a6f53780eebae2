"""Assigns waiting samples to workers as the policy decides, and validates the decision. Pure, part of the ledger.

Two passes. `assign` runs whenever something happened: it offers what waits to the workers with a free slot. `move`
runs about once a second: it asks workers to release running samples that another worker should continue.

The order of an assignment: first samples on their way to a certain worker (`goal`), then *suspects* (see `retries`),
one per worker, then whatever the policy assigns.

Invariants: a worker gets no more samples than it has free slots (samples that were parked may come on top when newer
weights are loaded; a reward worker that scores whole groups gets whole groups), and only samples that its weights
allow. A policy that violates this fails an assertion; it cannot change any state. A policy is asked again only about
workers that changed, and about all of them after samples started to wait or a tick passed. Which worker *should* get
a sample is not decided here but in `scheduler`. `scheduler.pace` gives the policy the speed of each engine.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from rhymed.core.messages import LengthRow, SampleId
from rhymed.core.steps import is_evaluation, window
from rhymed_broker import scheduler
from rhymed_broker.forecast import Lengths
from rhymed_broker.ledger.actions import Assign, Recall, Release, ScoreSamples
from rhymed_broker.ledger.samples import Samples
from rhymed_broker.ledger.step import OpenStep
from rhymed_broker.ledger.workers import Worker, Workers
from rhymed_broker.scheduler.pace import Pace
from rhymed_broker.scheduler.policy import Running, StepQueue, load
from rhymed_broker.states import Sample, State

MOST_RANKED = 2048  # groups of open steps that are ranked again while they run: about 0.1 s
VERIFIED = 0.1  # forwards per token that a moved sample has
RELEASE_S = 30.0  # after this time a worker that did not release a sample is asked again


class Dispatch:
    def __init__(self, samples: Samples, workers: Workers, policy: scheduler.Policy, forecast: Lengths) -> None:
        self.policy = policy
        self.forecast = forecast
        self.pace = Pace()
        self._limits: Mapping[str, int] = {}  # worker -> samples that it should run at most
        self._end_s = 0.0  # until the step in flight ends
        self._rate = math.inf  # tokens per second of all rollout workers with full slots
        self._samples, self._workers = samples, workers
        self._recalled: set[str] = set()  # prompts whose history the store was asked for
        self._known: set[str] = set()  # prompts with history
        self._offer_all = True  # the next `assign` offers what waits to all workers

    def opened(self, open_step: OpenStep) -> list[Recall]:
        """Ranks a step's groups; asks for the history of new prompts."""
        if is_evaluation(open_step.step):
            return []
        prompts = list(open_step.places)
        self.forecast.open(open_step.step, prompts)
        self._rank_from_history(open_step)
        unknown = [prompt for prompt in prompts if prompt not in self._recalled]
        self._recalled.update(unknown)
        return [Recall(open_step.step, unknown)] if unknown else []

    def remember(self, past: Mapping[str, LengthRow]) -> None:
        """The store's answer to `Recall`: prompt -> lengths of its responses in earlier epochs."""
        for prompt, row in past.items():
            self.forecast.remember(prompt, row.lengths)
            if row.lengths:
                self._known.add(prompt)
        for step, open_step in self._samples.open_steps.items():
            if not is_evaluation(step):
                self._rank_from_history(open_step)

    def closed(self, step: int) -> None:
        self.forecast.close(step)
        self._known.update(self._samples.open_steps[step].places)

    def rank_again(self) -> None:
        """Ranks what waits by the progress of running siblings too.

        With too many groups this would cost too much every second: then history alone decides.
        """
        open_steps = [step for step in self._samples.training_steps() if not step.all_generated]
        if sum(open_step.groups for open_step in open_steps) > MOST_RANKED:
            return
        steps = {open_step.step for open_step in open_steps}
        progress: dict[tuple[int, str], list[int]] = defaultdict(list)
        for sample in self._samples.queues["running"]:
            if sample.id.step in steps and not self._parked(sample):
                progress[sample.id.step, sample.id.prompt].append(sample.written)
        for (step, prompt), tokens in progress.items():
            self.forecast.running(step, prompt, tokens)
        for open_step in open_steps:
            if open_step.counts["waiting"]:
                self._rank(open_step)

    def _rank_from_history(self, open_step: OpenStep) -> None:
        self._rank(open_step)
        open_step.forecast = {prompt: self.forecast.expect(open_step.step, prompt) for prompt in open_step.places}
        open_step.dealt_to = -1

    def _rank(self, open_step: OpenStep) -> None:
        """The policy's order; groups without history, none of whose samples has begun, come first."""
        step, waiting = open_step.step, open_step.unassigned["waiting"]
        open_step.expected = expected = {prompt: self.forecast.expect(step, prompt) for prompt in waiting}
        tokens = sum(expected[prompt] * len(group) for prompt, group in waiting.items())
        open_step.mean = tokens / max(1, open_step.counts["waiting"])
        size = len(open_step.samples) // max(1, open_step.groups)
        unprobed = {prompt for prompt, group in waiting.items() if prompt not in self._known and len(group) >= size}
        open_step.unprobed = unprobed
        order = self.policy.rank(step, list(waiting), open_step.expected.__getitem__)
        open_step.rank(sorted(order, key=lambda prompt: prompt not in unprobed))

    def offer_all(self) -> None:
        """The next `assign` offers what waits to all workers."""
        self._offer_all = True

    def may_have(self, worker: Worker, step: int, version: int) -> bool:
        """Do its weights allow samples of this step? `version`: of the run."""
        _, newest = window(step, self._samples.rules.max_staleness)
        return worker.role != "rollout" or self._samples.earliest(step) <= worker.version <= min(newest, version)

    def assign(self, version: int, now: float) -> list[Assign | ScoreSamples]:
        """Assigns what can be assigned, to workers whose weights are not newer than `version`."""
        changed = self._workers.take_changed()
        to_all, self._offer_all = self._offer_all or self._samples.arrived, False
        self._samples.arrived = False
        free = self._workers.free["rollout"]
        workers = list(free.values()) if to_all else [worker for worker in changed if worker.role == "rollout"]
        workers = [worker for worker in workers if worker.version <= version]
        actions: list[Assign | ScoreSamples] = []
        if workers and self._samples.queues["waiting"]:
            self._deal()
            waiting = self._assign_some("waiting", self.policy, workers, version, now)
            for name, samples in waiting.items():
                begun = tuple(sample.id for sample in samples if sample.begun)
                actions.append(Assign(name, [sample.id for sample in samples], begun))
        rewards = list(self._workers.free["reward"].values())
        if rewards and self._samples.queues["generated"]:
            singly = [worker for worker in rewards if not worker.join.whole_groups]
            groups = self._written_groups([worker for worker in rewards if worker.join.whole_groups])
            assigned: dict[str, list[Sample]] = {}
            self._apply(groups, assigned, version, now, whole=True)
            if singly:
                assigned |= self._assign_some("generated", scheduler.FAIR, singly, version, now)
            actions += [ScoreSamples(name, [sample.id for sample in samples]) for name, samples in assigned.items()]
        return actions

    def _written_groups(self, workers: Sequence[Worker]) -> list[scheduler.Assignment]:
        """Whole groups, each to the worker with the least to do: those that are written, or dropped, but for samples
        that were scored before. A group may be larger than a worker's slots."""
        placed: list[scheduler.Assignment] = []
        loads = {worker.name: load(worker) for worker in workers}
        for step in (*self._samples.evaluations(), *self._samples.training_steps()):
            for prompt in step.written:
                able = [worker for worker in workers if loads[worker.name] < worker.slots]
                if not able:
                    return placed
                worker = min(able, key=lambda one: loads[one.name] / one.slots)
                group = list(step.unassigned["generated"][prompt])
                placed.append(scheduler.Assignment(worker.name, group))
                loads[worker.name] += len(group)
        return placed

    def _deal(self) -> None:
        """Deals all prompts of the open steps, if the policy deals and rollout workers or history changed.

        All of them, since samples that come back need a worker too.
        """
        deal = self.policy.deal
        if deal is None:
            return
        workers = sorted(self._workers.of_role("rollout"), key=lambda worker: worker.name)
        workers = [worker for worker in workers if not worker.drained]
        for step, open_step in self._samples.open_steps.items():
            if not is_evaluation(step) and open_step.dealt_to != self._workers.lineup:
                expect = open_step.forecast.__getitem__
                open_step.deal = deal(self.policy.rank(step, list(open_step.forecast), expect), workers, expect)
                open_step.dealt_to = self._workers.lineup

    def _assign_some(
        self, state: State, policy: scheduler.Policy, workers: Sequence[Worker], version: int, now: float
    ) -> dict[str, list[Sample]]:
        """Worker -> samples in `state` that it is assigned."""
        assigned: dict[str, list[Sample]] = {}
        if state == "waiting" and self._samples.moving:
            self._apply(self._moving(workers, version), assigned, version, now)
            workers = [worker for worker in workers if load(worker) < worker.slots]
        if state == "waiting" and self._samples.suspects:
            self._apply(self._lone_suspects(workers, version), assigned, version, now)
            workers = [worker for worker in workers if load(worker) < worker.slots]
        placed = policy.assign(
            scheduler.Snapshot(self._step_queues(state), workers, self.pace, self._limits, self._end_s, self._rate)
        )
        self._apply(placed, assigned, version, now)
        return assigned

    def _moving(self, workers: Sequence[Worker], version: int) -> list[scheduler.Assignment]:
        """Samples on their way to a worker that has room for them."""
        room = {worker.name: worker.slots - load(worker) for worker in workers}
        placed = []
        moving = self._samples.moving = {
            sample: None for sample in self._samples.moving if sample.goal and self._samples.get(sample.id) is sample
        }
        for sample in moving:
            free = sample.state == "waiting" and room.get(sample.goal, 0) > 0
            if free and self.may_have(self._workers.by_name[sample.goal], sample.id.step, version):
                placed.append(scheduler.Assignment(sample.goal, [sample]))
                room[sample.goal] -= 1
        return placed

    def _lone_suspects(self, workers: Sequence[Worker], version: int) -> list[scheduler.Assignment]:
        """One for each worker that has none: if the worker dies, only one sample can be the cause."""
        suspects = self._samples.suspects
        waiting = [sample for sample in suspects if sample.state == "waiting"]
        placed = []
        for worker in workers:
            able = (sample for sample in waiting if self.may_have(worker, sample.id.step, version))
            if any(sample in suspects for sample in worker.held.values()) or (sample := next(able, None)) is None:
                continue
            waiting.remove(sample)
            placed.append(scheduler.Assignment(worker.name, [sample]))
        return placed

    def _step_queues(self, state: State) -> list[StepQueue]:
        """What a policy may assign: all samples in `state` but suspects."""
        queues, suspects = self._samples.step_queues(state), self._samples.suspects
        if state != "waiting" or not suspects:
            return queues
        return [queue for whole in queues if (queue := whole.without(suspects)).size]

    def _apply(
        self,
        placed: Sequence[scheduler.Assignment],
        assigned: dict[str, list[Sample]],
        version: int,
        now: float,
        *,
        whole: bool = False,
    ) -> None:
        """`whole`: groups, of which the last one may exceed a worker's slots."""
        for name, samples in placed:
            worker = self._workers.by_name[name]
            least = 1 if whole else len(samples)
            assert load(worker) + least <= worker.slots, f"policy: {name} has no room for {len(samples)}"
            groups = dict.fromkeys([(sample.id.step, sample.id.prompt) for sample in samples])
            for step in {step for step, _ in groups}:
                assert self.may_have(worker, step, version), f"policy: {name} may not have samples of step {step}"
            self._samples.move_all(samples, "assigned", now, name)
            for step, prompt in groups:
                self._samples.open_steps[step].probed(prompt)
            for sample in samples:
                sample.goal = ""
            self._workers.hold(worker, samples, now)
            assigned.setdefault(name, []).extend(samples)

    def move(self, version: int, now: float) -> list[Release]:
        """Requests to release samples of the oldest step that is not generated, so that others continue them."""
        open_steps = self._samples.training_steps()
        open_step = next((step for step in open_steps if not step.all_generated), None)
        if open_step is None:
            self._limits, self._end_s = {}, 0.0
            return []
        running = [sample for sample in self._samples.queues["running"] if sample.id.step == open_step.step]
        if any(now - sample.released < RELEASE_S for sample in running if sample.released):
            return []  # loads are about to change
        running = [sample for sample in running if not self._parked(sample)]
        able = [worker for worker in self._workers.of_role("rollout") if not (worker.rest or worker.drained)]
        workers = {worker.name: worker for worker in able if self.may_have(worker, open_step.step, version)}
        self._rate = sum(worker.slots / self.pace(worker.name, worker.slots) for worker in able) or math.inf
        queued = [step for step in open_steps if step.counts["waiting"]]
        ready = [step for step in queued if window(step.step, self._samples.rules.max_staleness)[0] <= version]
        length = max([1.0, *(worker.accept_length for worker in able)])  # tokens per forward
        snapshot = Running(
            samples=running,
            size=len(open_step.samples),
            workers=workers,
            left=self._left,
            total=self._total,
            pace=self.pace,
            waiting=open_step.counts["waiting"],
            verified=VERIFIED * length,
            queued=sum(step.work for step in ready),
            synchronous=not self._samples.rules.max_staleness,
            ahead=len(ready) < len(queued),
        )
        moves, self._limits, self._end_s = self.policy.move(snapshot)
        releases: dict[str, list[SampleId]] = {}
        for sample, target in moves:
            assert target in workers, f"policy: {target} may not have {sample.id}"
            sample.released, sample.goal = now, target
            self._samples.moving[sample] = None
            releases.setdefault(sample.worker, []).append(sample.id)
        return [Release(name, ids) for name, ids in releases.items()]

    def stays(self, ids: Iterable[SampleId]) -> None:
        """The request to release these was not delivered: they stay where they are."""
        for id in ids:
            if sample := self._samples.get(id):
                sample.released, sample.goal = 0.0, ""

    def _left(self, sample: Sample) -> float:
        return self.forecast.left(sample.id.step, sample.id.prompt, sample.written)

    def _total(self, sample: Sample) -> float:
        return self._samples.open_steps[sample.id.step].forecast[sample.id.prompt]

    def _parked(self, sample: Sample) -> bool:
        worker = self._workers.by_name.get(sample.worker)
        return worker is not None and sample.id in worker.parked
