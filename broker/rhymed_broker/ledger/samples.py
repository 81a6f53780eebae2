"""All samples of the open steps: their states, the queues these make, and the open_steps of the steps.

Invariants: every sample is in exactly one queue, in the order in which it came there; what the journal had of a step
counts when the step is opened; a trained step is forgotten. Every move goes through `move`, so through the table.
Knows nothing of workers beyond the name in a sample's story.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol

from rhymed.messages import EVAL, JournalEntry, SampleId
from rhymed.staleness import window
from rhymed_broker.ledger.actions import Mark
from rhymed_broker.ledger.meter import StepMeter
from rhymed_broker.ledger.step import OpenStep
from rhymed_broker.pipe.policy import StepQueue
from rhymed_broker.states import NEXT, STATES, STORY_LENGTH, Event, Sample, State


class Watcher(Protocol):
    """Who is told of all that happens to samples, after it."""

    def moved(self, samples: Sequence[Sample], event: Event, now: float, who: str) -> None:
        """The same has happened to all of these."""

    def closed(self, step: int) -> None:
        """The step is forgotten: it was trained, or it was an evaluation that is over."""

    def set_back(self) -> None:
        """All steps are forgotten, and will be opened again."""


class Samples:
    def __init__(self, max_staleness: int, run_ahead: int = 0) -> None:
        self.max_staleness = max_staleness
        self.run_ahead = run_ahead  # steps that may be written before their weights are there
        self.open_steps: dict[int, OpenStep] = {}  # open steps, oldest first
        self.queues: dict[State, dict[Sample, None]] = {state: {} for state in STATES}
        self.transitions = 0  # ever
        self.counts: Counter[str] = Counter()  # event -> samples that it has happened to; ever
        self.watcher: Watcher | None = None
        self.suspects: dict[Sample, None] = {}  # workers died with them: see `retries`
        self.last_drop = ""  # why the newest of the dropped samples was
        self.sparse = (0, 0, 0)  # of the step trained last: number, samples, how many were dropped
        self.arrived = False  # samples came to wait since somebody looked and said no
        self._found: dict[int, dict[SampleId, JournalEntry]] = {}  # of steps not yet opened
        self._past: dict[State, int] = {"trained": 0, "dropped": 0}  # of steps forgotten
        self._drops: dict[str, list[SampleId]] = {}  # reason -> not yet journaled

    def reset(self, journal: Iterable[JournalEntry]) -> None:
        """Forget all steps; what of them is known is in the journal."""
        for queue in self.queues.values():
            queue.clear()
        self.open_steps.clear()
        self.suspects.clear()
        self._found.clear()
        for entry in journal:
            self._found.setdefault(entry.id.step, {})[entry.id] = entry
        if self.watcher is not None:
            self.watcher.set_back()

    def open(self, step: int, ids: list[SampleId], meter: StepMeter, now: float) -> None:
        open_step = self.open_steps[step] = OpenStep(step, ids, meter)
        found = self._found.pop(step, {})
        self.move_all([sample for id, sample in open_step.samples.items() if id not in found], "opened", now)
        for id, entry in found.items():
            if sample := open_step.samples.get(id):
                self._recover(sample, entry, now)

    def _recover(self, sample: Sample, entry: JournalEntry, now: float) -> None:
        """To where the journal says it is. One that was trained after the last checkpoint is trained again.

        One of an evaluation is scored again: the journal knows its reward, but not what each scorer gave.
        """
        if entry.state == "begun":
            sample.begun = True
            self.move(sample, "opened", now)
            return
        sample.length, sample.oldest, sample.reward = entry.length, entry.oldest_version, entry.reward
        if entry.state == "dropped":
            self.move(sample, "found_dropped", now, entry.reason)
            return
        scored = entry.reward is not None and sample.id.step < EVAL
        self.move(sample, "found_scored" if scored else "found_generated", now)
        self.refuse_stale(sample, now)

    def get(self, id: SampleId) -> Sample | None:
        """None: its step is not open (yet, or any more), or it is not in the plan."""
        open_step = self.open_steps.get(id.step)
        return open_step.samples.get(id) if open_step is not None else None

    def move(self, sample: Sample, event: Event, now: float, who: str = "") -> None:
        """Raises `InvalidTransition`."""
        self.move_all((sample,), event, now, who)

    def move_all(self, samples: Sequence[Sample], event: Event, now: float, who: str = "") -> None:
        """The same event for many; they may be in different states, of different steps."""
        queues, open_steps, line = self.queues, self.open_steps, (now, event, who)
        for sample in samples:
            source = sample.state
            target = NEXT[source].get(event) or sample.refuse(event)
            sample.state = target
            sample.since = now
            story = sample.story
            story.append(line)
            if len(story) > STORY_LENGTH:
                del story[1]  # its beginning stays
            if source != "new":
                del queues[source][sample]
            queues[target][sample] = None
            if target == "waiting":
                self.arrived = True
            open_steps[sample.id.step].moved(sample, source, target)
        self.transitions += len(samples)
        self.counts[event] += len(samples)
        if self.watcher is not None:
            self.watcher.moved(samples, event, now, who)

    def drop(self, sample: Sample, reason: str, now: float) -> None:
        self.move(sample, "dropped", now, reason)
        self.last_drop = reason
        self._drops.setdefault(reason, []).append(sample.id)

    def refuse_stale(self, sample: Sample, now: float, newest_version: int | None = None) -> None:
        """Drop it if it has tokens of weights that are too old for its step, or too new."""
        oldest, newest = window(sample.id.step, self.max_staleness)
        if sample.oldest < oldest:
            self.drop(sample, f"stale: tokens of version {sample.oldest}, allowed are {oldest} and newer", now)
        elif newest_version is not None and newest_version > newest:
            self.drop(sample, f"mixed: tokens of version {newest_version}, allowed are {newest} and older", now)

    def take_drops(self) -> list[Mark]:
        """Those to be journaled since the last call."""
        marks = [Mark(ids, "dropped", reason) for reason, ids in self._drops.items()]
        self._drops = {}
        return marks

    def step_queues(self, state: State) -> list[StepQueue]:
        """What is in `state`, by step and group, for a policy."""
        return [
            StepQueue(
                step,
                self.earliest(step),
                *window(step, self.max_staleness),
                open_step.unassigned[state],
                open_step.counts[state],
                open_step.deal if state == "waiting" else None,
                open_step.expected,
                open_step.unprobed,
            )
            for step, open_step in sorted(self.open_steps.items(), key=lambda item: item[0] < EVAL)
            if open_step.counts[state]
        ]

    def earliest(self, step: int) -> int:
        """Version from which a worker may begin the step's samples."""
        oldest, _ = window(step, self.max_staleness)
        return oldest if step >= EVAL else max(0, oldest - self.run_ahead)

    def finish(self, step: int, now: float) -> list[SampleId]:
        """The step is trained: returns the samples that were, and forgets all; later reports on them are late."""
        open_step = self.open_steps.pop(step)
        done: list[Sample] = []
        for sample in open_step.samples.values():
            if sample.state != "dropped":
                if "trained" not in NEXT[sample.state]:
                    sample.refuse("trained")
                done.append(sample)
            del self.queues[sample.state][sample]
            self.suspects.pop(sample, None)
        self.transitions += len(done)
        self.counts["trained"] += len(done)
        self.sparse = (step, len(open_step.samples), open_step.counts["dropped"])
        self._past["trained"] += len(done)
        self._past["dropped"] += open_step.counts["dropped"]
        if self.watcher is not None:
            self.watcher.moved(done, "trained", now, "")
            self.watcher.closed(step)
        return [sample.id for sample in done]

    def forget(self, step: int) -> None:
        """The evaluation is over: later reports on its samples are late."""
        open_step = self.open_steps.pop(step)
        for sample in open_step.samples.values():
            del self.queues[sample.state][sample]
        self._past["dropped"] += open_step.counts["dropped"]
        if self.watcher is not None:
            self.watcher.closed(step)

    def evaluations(self) -> list[OpenStep]:
        """Those that are open."""
        return [open_step for step, open_step in self.open_steps.items() if step >= EVAL]

    def depths(self) -> dict[State, int]:
        """State -> samples; for the last two since the broker started."""
        return {state: len(queue) + self._past.get(state, 0) for state, queue in self.queues.items()}
