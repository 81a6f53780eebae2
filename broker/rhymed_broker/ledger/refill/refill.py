"""Groups without signal are dropped, and the next prompts of the plan replace them.

Pure, part of the ledger. As soon as a group of a step is complete and has no signal, the next prompt begins, until
the step has replaced as many groups as it may. When all groups are complete, the step is sealed, and may be trained.

Why the order of events does not matter: which prompts are drawn depends on their number alone, and a prompt is drawn
only while fewer are drawn than groups are known to have no signal. So the number at the end is the smallest one with
which both agree, or the limit. Which of the flat groups are replaced matters only at the limit: the first ones, in
the order of the plan.

Invariants: steps are sealed in order, and only the first that is not sealed is refilled. A decision is a function of
the step's samples alone, so a restart decides the same again; a group that was trained is never replaced, even if its
rewards in the store are others than those that decided. Knows nothing of workers.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean

from rhymed.messages import EVAL, NOT_PLANNED, Drawn, JournalEntry, SampleId, Score
from rhymed_broker.ledger.actions import Recall
from rhymed_broker.ledger.dispatch import Dispatch
from rhymed_broker.ledger.refill.draws import Draws, Steps
from rhymed_broker.ledger.refill.signal import REWARD, SignalRule
from rhymed_broker.ledger.samples import Samples
from rhymed_broker.ledger.step import OpenStep
from rhymed_broker.slices import Slices, sliced


class Refill:
    """`rule`: None: groups without signal stay in their steps."""

    def __init__(self, samples: Samples, dispatch: Dispatch, rule: SignalRule | None) -> None:
        self.rule = rule
        self._samples, self._dispatch = samples, dispatch
        self._spare = 0  # prompts that the dataset has besides those of a step
        self._most = 0  # groups that a step may replace
        self._plan: Steps
        self._draws: Draws
        samples.scored_again = rule is not None and rule.metric != REWARD

    def start(
        self, plan: Steps, reach: int, position: int, journal: Iterable[JournalEntry], drawn: Iterable[Drawn]
    ) -> list[Drawn]:
        """After `position` trained steps. Returns what the journal lacks of their draws."""
        taken: dict[int, set[str]] = {}
        scored: dict[int, list[tuple[str, float | None]]] = {}
        for entry in journal:
            if entry.id.step < position and entry.reason != NOT_PLANNED:
                taken.setdefault(entry.id.step, set()).add(entry.id.prompt)
                scored.setdefault(entry.id.step, []).append((entry.id.prompt, entry.reward))
        self._plan, self._draws = plan, Draws(plan, reach)
        self._spare = plan.size - plan.prompts_per_step
        self._most = 0 if self.rule is None else min(self.rule.most, self._spare)
        rates = {step: plan.sampler.rates(rewards) for step, rewards in scored.items()} if plan.sampler else {}
        return self._draws.restore(position, drawn, taken, rates)

    def first(self, step: int) -> list[SampleId]:
        """The samples that a step opens with."""
        return self._ids(step, self._draws.first(step))

    def _ids(self, step: int, prompts: Iterable[str]) -> list[SampleId]:
        return [SampleId(step, prompt, index) for prompt in prompts for index in range(self._plan.group_size)]

    def points(self, score: Score) -> float | None:
        return None if self.rule is None else self.rule.points(score)

    @sliced
    def settle(self, now: float) -> Slices[list[Recall]]:
        """Replaces what has no signal, and seals steps whose groups are complete."""
        recalls: list[Recall] = []
        for step, open_step in self._samples.open_steps.items():
            if step >= EVAL or open_step.drawn is not None:
                continue
            recalls += yield from self._replace(open_step, now)
            if not open_step.complete:
                break
            self._seal(open_step, now)
        return recalls

    def _replace(self, open_step: OpenStep, now: float) -> Slices[list[Recall]]:
        recalls: list[Recall] = []
        while completed := open_step.take_completed():
            for prompt in completed:
                self._judge(open_step, prompt, now)
            if count := min(len(open_step.flat), self._limit(open_step)) - open_step.refilled:
                prompts = self._draws.refill(open_step.step, count, open_step.places)
                yield from self._samples.extend.slices(open_step, self._ids(open_step.step, prompts), now)
                recalls += yield from self._dispatch.opened.slices(open_step)
        return recalls

    def _limit(self, open_step: OpenStep) -> int:
        """Groups that the step may replace: not fewer than were dropped under earlier settings."""
        if self.rule is not None and not self.rule.keep:
            return self._most
        return min(self._spare, max(self._most, len(open_step.filtered)))

    def _judge(self, open_step: OpenStep, prompt: str, now: float) -> None:
        """A group is complete. Without signal it is dropped at once if it is sure to be replaced, or never kept."""
        group = open_step.group(prompt)
        if any(sample.state == "filtered" for sample in group):  # before a restart
            open_step.flat[prompt] = None
            open_step.filtered.add(prompt)
        elif self.rule is None or not self.rule.is_flat(group):
            return
        elif any(sample.repeated for sample in group):  # its step is trained again, with the same groups
            open_step.unreplaced += 1
        else:
            open_step.flat[prompt] = None
            if open_step.places[prompt] < self._most or not self.rule.keep:
                self._filter(open_step, prompt, now)

    def _filter(self, open_step: OpenStep, prompt: str, now: float) -> None:
        assert self.rule is not None, "nothing is flat without a rule"
        open_step.filtered.add(prompt)
        self._samples.filter(open_step.group(prompt), self.rule.reason, now)

    def _seal(self, open_step: OpenStep, now: float) -> None:
        """All groups are complete. Of those without signal that are still there, the first were replaced, too."""
        left = sorted(open_step.flat.keys() - open_step.filtered, key=open_step.places.__getitem__)
        for prompt in left[: max(0, open_step.refilled - len(open_step.filtered))]:
            self._filter(open_step, prompt, now)
        open_step.unreplaced += len(open_step.flat) - open_step.refilled
        sampler, samples = self._plan.sampler, open_step.samples.values()
        rates = sampler.rates((sample.id.prompt, sample.reward) for sample in samples) if sampler else []
        open_step.drawn = self._draws.seal(open_step.step, rates)
        self._samples.drop_unplanned(open_step.step)
        if self.rule is None:
            return
        rewards = [sample.reward for sample in open_step.samples.values() if sample.reward is not None]
        open_step.meter.filters = {
            "rollout/filtered": float(open_step.counts["filtered"]),
            "rollout/filtered_groups": float(len(open_step.filtered)),
            "rollout/refilled_groups": float(open_step.refilled),
            "rollout/unreplaced_groups": float(open_step.unreplaced),
            "rollout/reward_mean": fmean(rewards) if rewards else 0.0,
        }

    def needs_record(self) -> bool:
        """Whether what a step drew has to be journaled: it does not follow from the plan alone."""
        return self.rule is not None or self._draws.kept
