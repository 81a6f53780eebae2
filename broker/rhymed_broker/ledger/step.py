"""One open step: its samples, which of them wait for a worker, and how complete its groups are.

Invariant: `counts` sum to the number of samples; `unassigned` holds the samples that are waiting, turned or
generated, by state and group, and no empty group; `written` has the groups of which generated samples are all that is
not settled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from rhymed.core.messages import Drawn, SampleId
from rhymed_broker.ledger.meter import Occupancy, StepMeter
from rhymed_broker.scheduler.policy import Deal
from rhymed_broker.states import SETTLED, STATES, UNWRITTEN, Sample, State

Groups = dict[str, dict[Sample, None]]


class OpenStep:
    def __init__(self, step: int, meter: StepMeter) -> None:
        self.step = step
        self.meter = meter
        self.samples: dict[SampleId, Sample] = {}
        self.counts: dict[State, int] = dict.fromkeys(STATES, 0)
        self.unassigned: dict[State, Groups] = {"waiting": {}, "turned": {}, "generated": {}}
        self.handed = False  # to a trainer, at least once
        self.forecast: dict[str, float] = {}  # prompt -> response tokens, by its history alone
        self.expected: dict[str, float] = {}  # prompt -> response tokens, when the groups were last ranked
        self.mean = 0.0  # response tokens of a waiting sample, likewise
        self.unprobed: set[str] = set()  # ranked prompts without history, none of whose samples has begun
        self.deal: Deal | None = None  # which worker begins which prompts, if the policy deals
        self.dealt_to = -1  # `Workers.lineup` that `deal` was made for
        self.flat: dict[str, None] = {}  # prompts of complete groups without signal
        self.filtered: set[str] = set()  # of these, those that were dropped
        self.unreplaced = 0  # groups without signal that nothing replaced
        self.drawn: Drawn | None = None  # not None: its prompts are final, see `refill`
        self.places: dict[str, int] = {}  # prompt -> number of its group, in the order of the plan
        self._first = 0  # groups that it was opened with
        self.completed: list[str] = []  # prompts of complete groups, in the order in which they became complete
        self.sent = 0  # of these, to the trainer, before the whole step
        self._taken = 0  # of these, by `take_completed`
        self.written: dict[str, None] = {}  # prompts of groups whose unsettled samples all wait for a reward worker
        self._unsettled: dict[str, int] = {}  # prompt -> samples neither scored nor dropped
        self._sizes: dict[str, int] = {}  # prompt -> samples

    def add(self, ids: Sequence[SampleId]) -> list[Sample]:
        """Whole groups, of prompts that the step did not have."""
        samples = [Sample(id) for id in ids]
        self.samples.update(zip(ids, samples, strict=True))
        for prompt, size in Counter([id.prompt for id in ids]).items():
            self._unsettled[prompt] = self._sizes[prompt] = size
            self.places[prompt] = len(self.places)
        self._first = self._first or len(self._sizes)
        self.meter.reopen()
        return samples

    @property
    def groups(self) -> int:
        return len(self._sizes)

    @property
    def refilled(self) -> int:
        """Groups that were added after it was opened."""
        return len(self._sizes) - self._first

    def moved(self, sample: Sample, source: State, target: State) -> None:
        counts = self.counts
        if source != "new":
            counts[source] -= 1
        counts[target] += 1
        prompt = sample.id.prompt
        if source in self.unassigned:
            groups = self.unassigned[source]
            group = groups[prompt]
            del group[sample]
            if not group:
                del groups[prompt]
        if target in self.unassigned:
            self.unassigned[target].setdefault(prompt, {})[sample] = None
        if target in SETTLED and source not in SETTLED:
            self._unsettled[prompt] -= 1
            if not self._unsettled[prompt]:
                self.completed.append(prompt)
        if "generated" in (source, target) or target in SETTLED:
            waiting = len(self.unassigned["generated"].get(prompt, ()))
            if waiting and waiting == self._unsettled[prompt]:
                self.written[prompt] = None
            else:
                self.written.pop(prompt, None)

    @property
    def groups_ready(self) -> int:
        return len(self.completed)

    def take_completed(self) -> list[str]:
        """Those that were completed since the last call."""
        completed, self._taken = self.completed[self._taken :], len(self.completed)
        return completed

    def group(self, prompt: str) -> list[Sample]:
        return [self.samples[SampleId(self.step, prompt, index)] for index in range(self._sizes[prompt])]

    def rank(self, prompts: Iterable[str]) -> None:
        """Sets the order in which waiting groups are begun."""
        waiting = self.unassigned["waiting"]
        self.unassigned["waiting"] = {prompt: waiting[prompt] for prompt in prompts}

    def probed(self, prompt: str) -> None:
        """Some samples have begun: the rest of the group comes last until the groups are ranked again."""
        if prompt in self.unprobed:
            self.unprobed.discard(prompt)
            waiting = self.unassigned["waiting"]
            if prompt in waiting:
                waiting[prompt] = waiting.pop(prompt)

    def note(self, now: float, occupancy: Occupancy) -> None:
        """Record when the last sample was generated, and when the last group was complete."""
        if self.meter.generated_at is None and self.all_generated:
            self.meter.generated(now, occupancy.read(now))
        if self.meter.complete_at is None and self.complete:
            self.meter.complete_at = now

    @property
    def work(self) -> float:
        """Expected tokens of all samples that wait."""
        return self.mean * self.counts["waiting"]

    @property
    def all_generated(self) -> bool:
        return not any(self.counts[state] for state in UNWRITTEN)

    @property
    def complete(self) -> bool:
        return self.groups_ready == self.groups
