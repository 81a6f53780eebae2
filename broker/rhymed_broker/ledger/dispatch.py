"""Hands what waits to workers as a policy says, and checks what it says. Pure, as the ledger whose hand it is.

Invariants: a worker is given no more samples than it has free slots (what it had parked may come on top when newer
weights are there); it gets only what its weights may begin; a policy is asked again only about seats to which
something has happened, and about all of them when samples came to wait or a tick went by.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from rhymed.messages import EVAL, SampleId
from rhymed.staleness import window
from rhymed_broker import pipe
from rhymed_broker.ledger.actions import Assign, Recall, Release, ScoreSamples
from rhymed_broker.ledger.samples import Samples
from rhymed_broker.ledger.step import OpenStep
from rhymed_broker.ledger.workers import Worker, Workers
from rhymed_broker.pipe.policy import Running, StepQueue, load
from rhymed_broker.states import Sample, State

LOOKED = 2048  # groups of open steps, about 0.1 s
RELEASE_S = 30.0  # then a worker that did not hand a sample over is asked again


class Lengths(Protocol):
    """A forecast of response lengths, in tokens; see `forecast.Forecast`."""

    def remember(self, prompt: str, past: Sequence[tuple[int, int]]) -> None: ...

    def open(self, step: int, prompts: Iterable[str]) -> None: ...

    def finished(self, step: int, prompt: str, tokens: int) -> None: ...

    def expect(self, step: int, prompt: str) -> float: ...

    def running(self, step: int, prompt: str, tokens: Iterable[int]) -> None: ...

    def left(self, step: int, prompt: str, tokens: int) -> float: ...

    def close(self, step: int) -> None: ...


class Dispatch:
    def __init__(self, samples: Samples, workers: Workers, policy: pipe.Policy, forecast: Lengths) -> None:
        self.policy = policy
        self.forecast = forecast
        self._samples, self._workers = samples, workers
        self._asked: set[str] = set()  # prompts whose history the store was asked for
        self._known: set[str] = set()  # prompts with history
        self._goals: dict[Sample, None] = {}  # samples on their way from worker to worker
        self._all = True  # seats are to be offered what waits

    def opened(self, open_step: OpenStep) -> list[Recall]:
        """A step is open: in which order its groups are begun, and what is not known of them yet."""
        if open_step.step >= EVAL:
            return []
        self.forecast.open(open_step.step, dict.fromkeys(id.prompt for id in open_step.samples))
        self._rank(open_step, afresh=True)
        unknown = [
            prompt for prompt in dict.fromkeys(id.prompt for id in open_step.samples) if prompt not in self._asked
        ]
        self._asked.update(unknown)
        return [Recall(open_step.step, unknown)] if unknown else []

    def remember(self, past: Mapping[str, Sequence[tuple[int, int]]]) -> None:
        """Prompt -> (step, response tokens) of earlier epochs, oldest first."""
        for prompt, lengths in past.items():
            self.forecast.remember(prompt, lengths)
            if lengths:
                self._known.add(prompt)
        for step, open_step in self._samples.open_steps.items():
            if step < EVAL:
                self._rank(open_step, afresh=True)

    def closed(self, step: int) -> None:
        """It is trained; what it taught is history."""
        self.forecast.close(step)
        self._known.update(id.prompt for id in self._samples.open_steps[step].samples)

    def look(self) -> None:
        """How far samples have come tells about their siblings, so what waits is ranked anew.

        Not where that would hold up the event loop for long: then history alone decides.
        """
        open_steps = [
            open_step
            for step, open_step in self._samples.open_steps.items()
            if step < EVAL and not open_step.all_generated
        ]
        if sum(open_step.groups for open_step in open_steps) > LOOKED:
            return
        steps = {open_step.step for open_step in open_steps}
        progress: dict[tuple[int, str], list[int]] = defaultdict(list)
        for sample in self._samples.queues["running"]:
            if sample.id.step in steps and not self._parked(sample):
                progress[sample.id.step, sample.id.prompt].append(sample.tokens)
        for (step, prompt), tokens in progress.items():
            self.forecast.running(step, prompt, tokens)
        for open_step in open_steps:
            if open_step.counts["waiting"]:
                self._rank(open_step)

    def offer_all(self) -> None:
        """Every seat is offered what waits at the next `place`."""
        self._all = True

    def may_have(self, worker: Worker, step: int, version: int) -> bool:
        """Do its weights allow it, where the run is at `version`?"""
        _, newest = window(step, self._samples.max_staleness)
        return worker.role != "rollout" or self._samples.earliest(step) <= worker.version <= min(newest, version)

    def place(self, version: int, now: float) -> list[Assign | ScoreSamples]:
        """Hands out what can be, to workers whose weights are not newer than `version`."""
        changed = self._workers.take_changed()
        everybody, self._all = self._all or self._samples.arrived, False
        self._samples.arrived = False
        free = self._workers.free["rollout"]
        seats = list(free.values()) if everybody else [worker for worker in changed if worker.role == "rollout"]
        seats = [worker for worker in seats if worker.version <= version]
        actions: list[Assign | ScoreSamples] = []
        if seats and self._samples.queues["waiting"]:
            self._deal()
            for name, samples in self._given("waiting", self.policy, seats, version, now).items():
                begun = tuple(sample.id for sample in samples if sample.begun)
                actions.append(Assign(name, [sample.id for sample in samples], begun))
        rewards = list(self._workers.free["reward"].values())
        if rewards and self._samples.queues["generated"]:
            found = self._given("generated", pipe.FAIR, rewards, version, now)
            actions += [ScoreSamples(name, [sample.id for sample in samples]) for name, samples in found.items()]
        return actions

    def move(self, version: int, now: float) -> list[Release]:
        """Of the oldest step that is not generated: what other workers shall go on with."""
        open_step = next(
            (one for one in self._samples.open_steps.values() if one.step < EVAL and not one.all_generated), None
        )
        if open_step is None or open_step.counts["waiting"]:
            return []
        running = [one for one in self._samples.queues["running"] if one.id.step == open_step.step]
        if any(now - one.released < RELEASE_S for one in running if one.released):
            return []  # loads are about to change
        running = [one for one in running if not self._parked(one)]
        crew = self._workers.by_name.values()
        workers = [one for one in crew if one.role == "rollout" and not one.resting and not one.drained]
        seats = {one.name: one for one in workers if self.may_have(one, open_step.step, version)}
        asked: dict[str, list[SampleId]] = {}
        for sample, target in self.policy.move(
            Running(running, len(open_step.samples), seats, self._left, self._total)
        ):
            assert target in seats, f"policy: {target} may not have {sample.id}"
            sample.released, sample.goal = now, target
            self._goals[sample] = None
            asked.setdefault(sample.worker, []).append(sample.id)
        return [Release(name, ids) for name, ids in asked.items()]

    def _left(self, sample: Sample) -> float:
        return self.forecast.left(sample.id.step, sample.id.prompt, sample.tokens)

    def _total(self, sample: Sample) -> float:
        return self._samples.open_steps[sample.id.step].forecast[sample.id.prompt]

    def _parked(self, sample: Sample) -> bool:
        worker = self._workers.by_name.get(sample.worker)
        return worker is not None and sample.id in worker.parked

    def _rank(self, open_step: OpenStep, *, afresh: bool = False) -> None:
        """`afresh`: from history, before any of it ran."""
        step, waiting = open_step.step, open_step.unassigned["waiting"]
        open_step.expected = {prompt: self.forecast.expect(step, prompt) for prompt in waiting}
        whole = len(open_step.samples) // max(1, open_step.groups)
        unknown = {prompt for prompt, group in waiting.items() if prompt not in self._known and len(group) >= whole}
        order = self.policy.rank(step, list(waiting), open_step.expected.__getitem__)
        open_step.unprobed = unknown
        if afresh:
            open_step.forecast = {id.prompt: self.forecast.expect(step, id.prompt) for id in open_step.samples}
            open_step.dealt_to = -1
        open_step.rank([*(one for one in order if one in unknown), *(one for one in order if one not in unknown)])

    def _deal(self) -> None:
        """Anew where workers came or went, or history came: all prompts, for what is given back needs a place."""
        deal = self.policy.deal
        if deal is None:
            return
        crew = sorted(self._workers.by_name.items())
        workers = [one for _, one in crew if one.role == "rollout" and not one.drained]
        for step, open_step in self._samples.open_steps.items():
            if step < EVAL and open_step.dealt_to != self._workers.lineup:
                expect = open_step.forecast.__getitem__
                open_step.deal = deal(self.policy.rank(step, list(open_step.forecast), expect), workers, expect)
                open_step.dealt_to = self._workers.lineup

    def _moved(self, seats: Sequence[Worker], version: int) -> list[pipe.Placement]:
        """Samples on their way to a worker that has room for them."""
        room = {worker.name: worker.slots - load(worker) for worker in seats}
        placed = []
        self._goals = {one: None for one in self._goals if one.goal and self._samples.get(one.id) is one}
        for sample in self._goals:
            free = sample.state == "waiting" and room.get(sample.goal, 0) > 0
            if free and self.may_have(self._workers.by_name[sample.goal], sample.id.step, version):
                placed.append(pipe.Placement(sample.goal, [sample]))
                room[sample.goal] -= 1
        return placed

    def _given(
        self, state: State, policy: pipe.Policy, seats: Sequence[Worker], version: int, now: float
    ) -> dict[str, list[Sample]]:
        given: dict[str, list[Sample]] = {}
        if state == "waiting" and self._goals:
            self._give(self._moved(seats, version), given, version, now)
            seats = [worker for worker in seats if load(worker) < worker.slots]
        if state == "waiting" and self._samples.suspects:
            self._give(self._suspected(seats, version), given, version, now)
            seats = [worker for worker in seats if load(worker) < worker.slots]
        self._give(policy.place(pipe.Snapshot(self._step_queues(state), seats)), given, version, now)
        return given

    def _suspected(self, seats: Sequence[Worker], version: int) -> list[pipe.Placement]:
        """One for each seat that has none: if its worker dies, there is only one that may be why."""
        suspects = self._samples.suspects
        waiting = [sample for sample in suspects if sample.state == "waiting"]
        placed = []
        for worker in seats:
            able = (sample for sample in waiting if self.may_have(worker, sample.id.step, version))
            if any(sample in suspects for sample in worker.held.values()) or (one := next(able, None)) is None:
                continue
            waiting.remove(one)
            placed.append(pipe.Placement(worker.name, [one]))
        return placed

    def _step_queues(self, state: State) -> list[StepQueue]:
        """What a policy may place: all but suspects."""
        queues, suspects = self._samples.step_queues(state), self._samples.suspects
        if state != "waiting" or not suspects:
            return queues
        return [queue for one in queues if (queue := one.without(suspects)).size]

    def _give(
        self, placed: Sequence[pipe.Placement], given: dict[str, list[Sample]], version: int, now: float
    ) -> None:
        for name, samples in placed:
            worker = self._workers.by_name[name]
            assert load(worker) + len(samples) <= worker.slots, f"policy: {name} has no room for {len(samples)}"
            for sample in samples:
                assert self.may_have(worker, sample.id.step, version), f"policy: {name} may not have {sample.id}"
            self._samples.move_all(samples, "assigned", now, name)
            for sample in samples:
                self._samples.open_steps[sample.id.step].probed(sample.id.prompt)
                sample.goal = ""
            self._workers.hold(worker, samples, now)
            given.setdefault(name, []).extend(samples)
