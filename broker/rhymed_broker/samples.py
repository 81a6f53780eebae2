"""All samples of the open steps: their states, the queues these make, and the books of the steps.

Invariants: every sample is in exactly one queue, in the order in which it came there; what the journal had of a step
counts when the step is opened; a trained step is forgotten. Every move goes through `move`, so through the table.
Knows nothing of workers beyond the name in a sample's story.
"""

from __future__ import annotations

from collections.abc import Iterable

from rhymed.messages import JournalEntry, SampleId
from rhymed_broker.actions import Mark
from rhymed_broker.book import StepBook
from rhymed_broker.metrics import StepMeter
from rhymed_broker.pipe import Shelf
from rhymed_broker.table import STATES, Event, Sample, State


class Samples:
    def __init__(self, max_staleness: int) -> None:
        self.max_staleness = max_staleness
        self.books: dict[int, StepBook] = {}  # open steps, oldest first
        self.queues: dict[State, dict[Sample, None]] = {state: {} for state in STATES}
        self.transitions = 0  # ever
        self._by_id: dict[SampleId, Sample] = {}
        self._found: dict[int, dict[SampleId, JournalEntry]] = {}  # of steps not yet opened
        self._past: dict[State, int] = {"trained": 0, "dropped": 0}  # of steps forgotten
        self._drops: dict[str, list[SampleId]] = {}  # reason -> not yet journaled

    def reset(self, journal: Iterable[JournalEntry]) -> None:
        """Forget all steps; what of them is known is in the journal."""
        for queue in self.queues.values():
            queue.clear()
        self.books.clear()
        self._by_id.clear()
        self._found.clear()
        for entry in journal:
            self._found.setdefault(entry.id.step, {})[entry.id] = entry

    def open(self, step: int, ids: list[SampleId], meter: StepMeter, now: float) -> None:
        book = self.books[step] = StepBook(step, ids, meter)
        self._by_id.update(book.samples)
        found = self._found.pop(step, {})
        for id, sample in book.samples.items():
            entry = found.get(id)
            if entry is None:
                self.move(sample, "opened", now)
            else:
                self._recover(sample, entry, now)

    def _recover(self, sample: Sample, entry: JournalEntry, now: float) -> None:
        """To where the journal says it is. One that was trained after the last checkpoint is trained again."""
        sample.length, sample.oldest, sample.reward = entry.length, entry.oldest_version, entry.reward
        if entry.state == "dropped":
            self.move(sample, "found_dropped", now, entry.reason)
            return
        self.move(sample, "found_generated" if entry.reward is None else "found_scored", now)
        self.refuse_stale(sample, now)

    def get(self, id: SampleId) -> Sample | None:
        """None: its step is not open (yet, or any more), or it is not in the plan."""
        return self._by_id.get(id)

    def move(self, sample: Sample, event: Event, now: float, who: str = "") -> None:
        source = sample.state
        target = sample.step_to(event, now, who)
        if source != "new":
            del self.queues[source][sample]
        self.queues[target][sample] = None
        self.books[sample.id.step].moved(sample, source, target)
        self.transitions += 1

    def drop(self, sample: Sample, reason: str, now: float) -> None:
        self.move(sample, "dropped", now, reason)
        self._drops.setdefault(reason, []).append(sample.id)

    def refuse_stale(self, sample: Sample, now: float) -> None:
        """Drop it if it has tokens of weights that are too old for its step."""
        allowed = sample.id.step - self.max_staleness
        if sample.oldest < allowed:
            self.drop(sample, f"stale: tokens of version {sample.oldest}, allowed are {allowed} and newer", now)

    def take_drops(self) -> list[Mark]:
        """Those to be journaled since the last call."""
        marks = [Mark(ids, "dropped", reason) for reason, ids in self._drops.items()]
        self._drops = {}
        return marks

    def shelves(self, state: State) -> list[Shelf]:
        """What is in `state`, by step and group, for a policy."""
        return [
            Shelf(step, max(0, step - self.max_staleness), book.shelves[state], book.counts[state])
            for step, book in self.books.items()
            if book.counts[state]
        ]

    def forget(self, step: int) -> None:
        """A trained step needs no memory: what is told of it from now on is late."""
        book = self.books.pop(step)
        for id, sample in book.samples.items():
            del self._by_id[id]
            del self.queues[sample.state][sample]
        for state in self._past:
            self._past[state] += book.counts[state]

    def depths(self) -> dict[State, int]:
        """State -> samples; for the last two since the broker started."""
        return {state: len(queue) + self._past.get(state, 0) for state, queue in self.queues.items()}
