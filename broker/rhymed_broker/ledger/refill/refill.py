"""Groups without signal are dropped from a complete step, and the next prompts of the plan replace them.

Pure, part of the ledger. In rounds: when all groups of a step are complete, those without signal are replaced, in the
order of their places, by as many prompts; when these are complete, again, until no group is without signal or
`SignalRule.most` groups were added. Then the step is sealed, and may be trained. Invariants: steps are sealed in
order; a decision is a function of the step's samples alone, so a restart decides the same again. A group that was
decided on before a restart is known by its state. Knows nothing of workers.
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
from rhymed_broker.states import Sample


class Refill:
    """`rule`: None: groups without signal stay in their steps."""

    def __init__(self, samples: Samples, dispatch: Dispatch, rule: SignalRule | None) -> None:
        self.rule = rule
        self._samples, self._dispatch = samples, dispatch
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
        rates = {step: plan.sampler.rates(rewards) for step, rewards in scored.items()} if plan.sampler else {}
        return self._draws.restore(position, drawn, taken, rates)

    def first(self, step: int) -> list[SampleId]:
        """The samples that a step opens with."""
        return self._ids(step, self._draws.first(step))

    def _ids(self, step: int, prompts: Iterable[str]) -> list[SampleId]:
        return [SampleId(step, prompt, index) for prompt in prompts for index in range(self._plan.group_size)]

    def points(self, score: Score) -> float | None:
        return None if self.rule is None else self.rule.points(score)

    def settle(self, now: float) -> list[Recall]:
        """Replaces what has no signal, and seals steps that are complete without it."""
        recalls: list[Recall] = []
        for step, open_step in self._samples.open_steps.items():
            if step >= EVAL or open_step.drawn is not None:
                continue
            while open_step.complete and open_step.drawn is None:
                recalls += self._round(open_step, now)
            if open_step.drawn is None:
                break
        return recalls

    def _round(self, open_step: OpenStep, now: float) -> list[Recall]:
        flat, step = self._flat(open_step), open_step.step
        room = self.rule.most - open_step.refilled if self.rule is not None else 0
        prompts = self._draws.refill(step, min(len(flat), room), open_step.all_prompts)
        replaced = flat if self.rule is not None and not self.rule.keep and not prompts else flat[: len(prompts)]
        self._drop(open_step, replaced, now)
        if not prompts:
            open_step.unreplaced = len(flat)
            self._seal(open_step)
            return []
        open_step.rounds += 1
        self._samples.extend(open_step, self._ids(step, prompts), now)
        return self._dispatch.opened(open_step)

    def _seal(self, open_step: OpenStep) -> None:
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
            "rollout/refill_rounds": float(open_step.rounds),
            "rollout/unreplaced_groups": float(open_step.unreplaced),
            "rollout/reward_mean": fmean(rewards) if rewards else 0.0,
        }

    def _flat(self, open_step: OpenStep) -> list[list[Sample]]:
        """The groups without signal that are still in the step, in the order of their places."""
        if self.rule is None:
            return []
        groups: dict[str, list[Sample]] = {}
        for sample in open_step.samples.values():
            groups.setdefault(sample.id.prompt, []).append(sample)
        return [
            group for prompt, group in groups.items() if prompt not in open_step.filtered and self.rule.is_flat(group)
        ]

    def _drop(self, open_step: OpenStep, groups: Iterable[list[Sample]], now: float) -> None:
        for group in groups:
            assert self.rule is not None, "nothing is flat without a rule"
            open_step.filtered.add(group[0].id.prompt)
            self._samples.filter(group, self.rule.reason, now)

    def needs_record(self) -> bool:
        """Whether what a step drew has to be journaled: it does not follow from the plan alone."""
        return self.rule is not None or self._draws.kept
