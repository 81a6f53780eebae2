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

`Refill` decides, `SignalRule` says which groups have a signal, and `Draws` which prompts each step takes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from msgspec.structs import replace

from rhymed.core.config import Trainer
from rhymed.core.messages import NO_SIGNAL, NOT_PLANNED, Cursor, Drawn, JournalEntry, SampleId, Score
from rhymed.core.steps import is_evaluation
from rhymed_broker.ledger.actions import Recall
from rhymed_broker.ledger.dispatch import Dispatch
from rhymed_broker.ledger.samples import Samples
from rhymed_broker.ledger.step import OpenStep
from rhymed_broker.plan import Plan, Rates
from rhymed_broker.states import Sample


class Refill:
    """`rule`: None: groups without signal stay in their steps."""

    def __init__(self, samples: Samples, dispatch: Dispatch, rule: SignalRule | None) -> None:
        self.rule = rule
        self._samples, self._dispatch = samples, dispatch
        self._spare = 0  # prompts that the dataset has besides those of a step
        self._most = 0  # groups that a step may replace
        self._plan: Plan
        self._draws: Draws
        samples.scored_again = rule is not None and rule.metric != REWARD

    def start(
        self, plan: Plan, reach: int, position: int, journal: Iterable[JournalEntry], drawn: Iterable[Drawn]
    ) -> list[Drawn]:
        """After `position` trained steps. Returns what the journal lacks of their draws."""
        taken: dict[int, set[str]] = {}
        scored: dict[int, list[tuple[str, float | None, int]]] = {}
        for entry in journal:
            if entry.id.step < position and entry.reason != NOT_PLANNED:
                taken.setdefault(entry.id.step, set()).add(entry.id.prompt)
                scored.setdefault(entry.id.step, []).append((entry.id.prompt, entry.reward, entry.length))
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

    def settle(self, now: float) -> list[Recall]:
        """Replaces what has no signal, and seals steps whose groups are complete."""
        recalls: list[Recall] = []
        for step, open_step in self._samples.open_steps.items():
            if is_evaluation(step) or open_step.drawn is not None:
                continue
            recalls += self._replace(open_step, now)
            if not open_step.complete:
                break
            self._seal(open_step, now)
        return recalls

    def _replace(self, open_step: OpenStep, now: float) -> list[Recall]:
        recalls: list[Recall] = []
        while completed := open_step.take_completed():
            for prompt in completed:
                self._judge(open_step, prompt, now)
            if count := min(len(open_step.flat), self._limit(open_step)) - open_step.refilled:
                prompts = self._draws.refill(open_step.step, count, open_step.places)
                self._samples.extend(open_step, self._ids(open_step.step, prompts), now)
                recalls += self._dispatch.opened(open_step)
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
        scored = ((sample.id.prompt, sample.reward, sample.length) for sample in samples)
        rates = sampler.rates(scored) if sampler else []
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


# Which prompts each step takes from the run's one sequence of prompts. Pure, part of the ledger.
#
# The sequence has one cursor, and the steps take from it in a fixed order, whatever happens when: the first prompts
# of the steps 0 to `reach` (those that are open at version 0), the refills of step 0, the first prompts of step reach
# + 1, the refills of step 1, and so on. A step is *sealed* when its prompts are final. Invariant: steps are sealed in
# order, and only the first step that is not sealed is refilled, so the cursor never depends on timing.
#
# `Drawn` is the state at the moment when a step was sealed. It is journaled when the step is trained; a restart
# continues from it. Where a broker died before it was written, the step's samples in the journal give the number of
# prompts that it took. Knows no samples and no states.


class Draws:
    """`reach`: steps that are open beyond the oldest one."""

    def __init__(self, plan: Plan, reach: int) -> None:
        self.kept = False  # some step was refilled, or is journaled: what later steps draw has to be journaled
        self._plan, self._reach = plan, reach
        self._next = Cursor()  # of the next prompts that a step takes
        self._starts: dict[int, Cursor] = {}  # step -> of its first prompts
        self._refill = (-1, Cursor(), 0)  # step that is being refilled, its first refill, prompts so far

    def restore(
        self,
        position: int,
        drawn: Iterable[Drawn],
        taken: Mapping[int, Collection[str]],
        rates: Mapping[int, Rates],
    ) -> list[Drawn]:
        """To the state after `position` trained steps. Returns what was derived, as it was not journaled.

        `drawn`: from the journal; `taken`: step -> prompts of its samples in the journal, of steps before `position`;
        `rates`: of these, with a sampler.
        """
        drawn = sorted(drawn, key=lambda one: one.step)
        earlier = [one for one in drawn if one.step < position]
        sampler = self._plan.sampler
        self.kept = bool(drawn) or sampler is not None  # also of steps that are trained again: theirs are replaced
        if sampler is not None:
            sampler.reset()
            for one in earlier:
                sampler.learn(one.step, one.rates)
        if earlier:
            last = earlier[-1]
            first, self._next, self._starts = last.step + 1, last.after, dict(last.reserved)
        else:
            first = min((step for step in taken if step < position), default=position)
            self._next = self._plan.cursor(first)
        derived = []
        for step in range(first, position):
            self._reserve(step)
            prompts = self.first(step)
            count = len(set(taken.get(step, ())) - set(prompts))
            self.refill(step, count, prompts)
            derived.append(self.seal(step, rates.get(step, [])))
        self._reserve(position)
        return derived if self.kept else []

    def _reserve(self, step: int) -> None:
        """The first prompts of this step and of those that are open with it; all steps before it are sealed."""
        self._know(step)
        for later in range(step, step + self._reach + 1):
            if later not in self._starts:
                self._starts[later] = self._next
                _, self._next = self._plan.draw(self._next, self._plan.prompts_per_step)

    def first(self, step: int) -> list[str]:
        """The prompts that an open step begins with."""
        return self._plan.draw(self._starts[step], self._plan.prompts_per_step)[0]

    def refill(self, step: int, count: int, without: Collection[str]) -> list[str]:
        """The next prompts for the first step that is not sealed, which has those of `without` already.

        Fewer if the dataset has no others.
        """
        refilled, start, sofar = self._refill
        if refilled != step:
            start, sofar = self._next, 0
        prompts: list[str] = []
        if count > 0:
            self._know(step)
            start = self._next if not sofar else start
            prompts, self._next = self._plan.draw(self._next, count, without)
        self._refill = step, start, sofar + len(prompts)
        self.kept |= bool(prompts)
        return prompts

    def _know(self, steps: int) -> None:
        """What is drawn from here on knows the results of so many steps, neither more nor less."""
        if self._plan.sampler is not None:
            self._next = replace(self._next, known=steps)

    def seal(self, step: int, rates: Rates) -> Drawn:
        """The step takes no more prompts: the next one may. `rates`: of all its prompts, with a sampler."""
        self.refill(step, 0, ())
        if self._plan.sampler is not None:
            self._plan.sampler.learn(step, rates)
        _, refill, refilled = self._refill
        self._reserve(step + 1)
        start = self._starts.pop(step)
        reserved = sorted(self._starts.items())
        after = self._next
        return Drawn(
            step=step, start=start, refill=refill, refilled=refilled, after=after, reserved=reserved, rates=rates
        )


# Whether a group of samples has a signal, and how many groups a step may replace. Pure, part of the ledger.
#
# A group whose samples all have the same reward has no advantages, so it changes no weights (DAPO, arXiv 2503.14476,
# section 3.2). The metric is the reward as it was scored, or one scorer's points; what the trainer adds to rewards
# does not count.

REWARD = "reward"  # the metric that is not a scorer's


@dataclass(frozen=True)
class SignalRule:
    """The limits of dynamic sampling, see `trainer.dynamic_sampling`."""

    most: int  # groups that may replace others, in one step
    metric: str = REWARD
    tolerance: float = 1e-6
    keep: bool = True  # a group without signal is trained if nothing may replace it

    @classmethod
    def of(cls, trainer: Trainer, prompts_per_step: int) -> SignalRule | None:
        """None: groups without signal stay in their steps."""
        settings = trainer.dynamic_sampling
        if not trainer.filters_groups:
            return None
        most = settings.most_refills(prompts_per_step)
        return cls(most, settings.metric, settings.tolerance, settings.on_exhausted == "keep")

    @property
    def reason(self) -> str:
        what = "reward" if self.metric == REWARD else self.metric
        return f"{NO_SIGNAL}: the samples of its group have the same {what}"

    def points(self, score: Score) -> float | None:
        return score.points("" if self.metric == REWARD else self.metric)

    def is_flat(self, group: Sequence[Sample]) -> bool:
        """Of a complete group. One with fewer than two scored samples has no signal either."""
        points = [sample.points for sample in group if sample.state != "dropped" and sample.points is not None]
        return len(points) < 2 or max(points) - min(points) <= self.tolerance
