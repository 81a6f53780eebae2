"""All samples of the open steps, their states, and the queue of each state. Pure, part of the ledger.

Invariants: every sample is in one queue, in the order of entry. A step that opens begins with what the journal has of
it; a trained step is forgotten. Every transition goes through `move_all`, and so through the table. Knows of workers
only the name in a sample's story.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from rhymed.core.messages import NO_SIGNAL, NOT_PLANNED, JournalEntry, SampleId
from rhymed.core.steps import is_evaluation, window
from rhymed_broker.ledger.actions import Mark
from rhymed_broker.ledger.meter import StepMeter
from rhymed_broker.ledger.step import OpenStep
from rhymed_broker.scheduler.policy import StepQueue
from rhymed_broker.states import NEXT, STATES, STORY_LENGTH, UNWRITTEN, Event, Rules, Sample, State


class Samples:
    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.open_steps: dict[int, OpenStep] = {}  # oldest first
        self.queues: dict[State, dict[Sample, None]] = {state: {} for state in STATES}
        self.counts: Counter[str] = Counter()  # event -> samples, since the broker started
        self.suspects: dict[Sample, None] = {}  # workers died with them: see `retries`
        self.moving: dict[Sample, None] = {}  # on their way to the worker `goal`: see `dispatch`
        self.last_drop = ""  # reason of the newest one
        self.sparse = (0, 0, 0)  # of the last trained step: number, samples, dropped samples
        self.flat = (0, 0, 0)  # of the same: number, groups, those without signal that nothing replaced
        self.scored_again = False  # samples in the journal: it lacks the scores by which groups are filtered
        self.turned: list[Sample] = []  # with environments: what has become so since `acting` last looked
        self.ended: list[Sample] = []  # likewise: what is written, or dropped
        self.resets = 0
        self.survival = 1.0  # share of tokens written ahead that newer weights kept, lately
        self.arrived = False  # samples started to wait since `dispatch` last looked
        self._journal: dict[int, dict[SampleId, JournalEntry]] = {}  # journal of steps not yet open
        self._past: dict[State, int] = {"trained": 0, "filtered": 0, "dropped": 0}  # of forgotten steps
        self._drops: dict[str, list[SampleId]] = {}  # reason -> not yet journaled

    def reset(self, journal: Iterable[JournalEntry]) -> None:
        """Forget all steps; `journal` has what the store knows of them."""
        self.turned, self.ended, self.resets = [], [], self.resets + 1
        for queue in self.queues.values():
            queue.clear()
        self.open_steps.clear()
        self.suspects.clear()
        self.moving.clear()
        self._journal.clear()
        for entry in journal:
            self._journal.setdefault(entry.id.step, {})[entry.id] = entry

    def open(self, step: int, ids: list[SampleId], meter: StepMeter, now: float) -> OpenStep:
        open_step = self.open_steps[step] = OpenStep(step, meter)
        self.extend(open_step, ids, now)
        return open_step

    def extend(self, open_step: OpenStep, ids: list[SampleId], now: float) -> None:
        """Adds whole groups to an open step, each sample in the state that the journal has."""
        added = open_step.add(ids)
        entries = self._journal.get(open_step.step, {})
        first: Event = "found_turned" if self.rules.environment else "opened"
        self.move_all([one for one in added if one.id not in entries], first, now)
        for sample in added if entries else ():
            if entry := entries.pop(sample.id, None):
                self._recover(sample, entry, now)

    def drop_unplanned(self, step: int) -> None:
        """The step is sealed: what else the journal has of it was asked for under other settings."""
        left = self._journal.pop(step, {})
        if ids := [id for id, entry in left.items() if entry.state != "dropped"]:
            self._drops.setdefault(NOT_PLANNED, []).extend(ids)

    def _recover(self, sample: Sample, entry: JournalEntry, now: float) -> None:
        """To the state in the journal. A sample trained after the last checkpoint is trained again.

        A sample of an evaluation is scored again: the journal has its reward, but not each scorer's part. So is any
        sample if dynamic sampling looks at a scorer's part.
        """
        if entry.state in ("begun", "turned"):
            sample.begun = True
            self.move(sample, "opened" if entry.state == "begun" else "found_turned", now)
            return
        sample.length, sample.oldest, sample.reward = entry.length, entry.oldest_version, entry.reward
        sample.learned = entry.length
        sample.points, sample.repeated = entry.reward, entry.state == "trained"
        if entry.state == "dropped":
            filtered = entry.reason.startswith(NO_SIGNAL)
            self.move(sample, "found_filtered" if filtered else "found_dropped", now, entry.reason)
            return
        scored = entry.reward is not None and not is_evaluation(sample.id.step) and not self.scored_again
        self.move(sample, "found_scored" if scored else "found_generated", now)
        self.refuse_stale(sample, now, sample.oldest)

    def get(self, id: SampleId) -> Sample | None:
        """None: its step is not open, or it is not in the plan."""
        open_step = self.open_steps.get(id.step)
        return open_step.samples.get(id) if open_step is not None else None

    def move(self, sample: Sample, event: Event, now: float, who: str = "") -> None:
        self.move_all((sample,), event, now, who)

    def move_all(self, samples: Sequence[Sample], event: Event, now: float, who: str = "") -> None:
        """Applies one event to samples of any states and steps. Raises `InvalidTransition`."""
        queues, open_steps, line = self.queues, self.open_steps, (now, event, who)
        for sample in samples:
            source = sample.state
            target = NEXT[source].get(event) or sample.refuse(event)
            sample.state = target
            sample.since = now
            story = sample.story
            story.append(line)
            if len(story) > STORY_LENGTH:
                del story[1]  # the first event stays
            if source != "new":
                del queues[source][sample]
            queues[target][sample] = None
            if target == "waiting":
                self.arrived = True
            open_steps[sample.id.step].moved(sample, source, target)
        self.counts[event] += len(samples)
        if self.rules.environment:
            self.turned += [sample for sample in samples if sample.state == "turned"]
            self.ended += [sample for sample in samples if sample.state not in UNWRITTEN]

    def drop(self, sample: Sample, reason: str, now: float) -> None:
        self.move(sample, "dropped", now, reason)
        self.last_drop = reason
        self._drops.setdefault(reason, []).append(sample.id)

    def filter(self, group: Sequence[Sample], reason: str, now: float) -> None:
        """Drops a group without signal. Its samples that failed are dropped already."""
        scored = [sample for sample in group if sample.state == "scored"]
        self.move_all(scored, "filtered", now, reason)
        if scored:
            self._drops.setdefault(reason, []).extend([sample.id for sample in scored])

    def refuse_stale(self, sample: Sample, now: float, newest_version: int | None = None) -> None:
        """Drop a sample with tokens of a version that is too old or too new for its step."""
        oldest, newest = window(sample.id.step, self.rules.max_staleness)
        if sample.oldest < oldest:
            self.drop(sample, f"stale: tokens of version {sample.oldest}, allowed are {oldest} and newer", now)
        elif newest_version is not None and newest_version > newest:
            self.drop(sample, f"mixed: tokens of version {newest_version}, allowed are {newest} and older", now)

    def take_drops(self) -> list[Mark]:
        """Samples dropped since the last call, for the journal."""
        marks = [Mark(ids, "dropped", reason) for reason, ids in self._drops.items()]
        self._drops = {}
        return marks

    def step_queues(self, state: State) -> list[StepQueue]:
        """The samples in `state`, by step and group, for a policy."""
        return [
            StepQueue(
                step,
                self.earliest(step),
                *window(step, self.rules.max_staleness),
                open_step.unassigned[state],
                open_step.counts[state],
                open_step.deal if state == "waiting" else None,
                open_step.expected,
                open_step.unprobed,
                open_step.work if state == "waiting" else 0.0,
                self.survival,
            )
            for step, open_step in sorted(self.open_steps.items(), key=lambda item: not is_evaluation(item[0]))
            if open_step.counts[state]
        ]

    def earliest(self, step: int) -> int:
        """The oldest version with which a worker may begin the step's samples."""
        oldest, _ = window(step, self.rules.max_staleness)
        return oldest if is_evaluation(step) else max(0, oldest - self.rules.run_ahead)

    def finish(self, step: int, now: float) -> list[SampleId]:
        """The step is trained. Forgets its samples, and returns the trained ones."""
        open_step = self.open_steps.pop(step)
        size, done = len(open_step.samples), list[SampleId]()
        for id, sample in open_step.samples.items():
            if sample.state not in ("filtered", "dropped"):
                if "trained" not in NEXT[sample.state]:
                    sample.refuse("trained")
                done.append(id)
            del self.queues[sample.state][sample]
            self.suspects.pop(sample, None)
        self.counts["trained"] += len(done)
        self.sparse = (step, size, open_step.counts["dropped"])
        self.flat = (step, open_step.groups - open_step.refilled, open_step.unreplaced)
        self._past["trained"] += len(done)
        self._past["filtered"] += open_step.counts["filtered"]
        self._past["dropped"] += open_step.counts["dropped"]
        return done

    def forget(self, step: int) -> None:
        """The evaluation is complete: forgets its samples."""
        open_step = self.open_steps.pop(step)
        self._journal.pop(step, None)
        for sample in open_step.samples.values():
            del self.queues[sample.state][sample]
        self._past["dropped"] += open_step.counts["dropped"]

    def evaluations(self) -> list[OpenStep]:
        return [open_step for step, open_step in self.open_steps.items() if is_evaluation(step)]

    def training_steps(self) -> list[OpenStep]:
        return [open_step for step, open_step in self.open_steps.items() if not is_evaluation(step)]

    def depths(self) -> dict[State, int]:
        """State -> samples; trained, filtered and dropped ones since the broker started."""
        return {state: len(queue) + self._past.get(state, 0) for state, queue in self.queues.items()}
