"""Rules over the newest steps of a run: each gives a sentence on what is wrong and one on what to change. Pure.

A row is a step's line of `metrics.jsonl`, names as in docs/metrics.md; a value may be missing or None. A rule is
silent where its metric is missing. The thresholds are starting points, not laws: advice never stops a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isfinite
from statistics import fmean
from typing import Any, NamedTuple

from rhymed.core.algorithms import ALGORITHMS

RECENT = 10  # steps that a rule looks at
NEWEST = 3  # steps, for rules about behaviour that a policy may unlearn quickly
LEAST = 5  # steps before which there is no advice
START = 5  # first steps, with which the newest are compared

SOLVED = 0.9  # mean reward, of at most 1
FLAT = 0.9  # share of groups with equal rewards
COLLAPSED = 0.05  # entropy, as a share of that of the first steps
GREW = 2.0  # response length, as a multiple of that of the first steps
BETTER = 0.05  # a reward that has risen by less has not risen
CUT = 0.25  # share of responses that end at the limit
MISMATCH = 0.02  # nats per token; engines in bfloat16 are near 0.001
EMPTY = 0.5  # share of slot time without a sample
SCORING = 0.3  # share of a step's time after its last sample that goes to scoring
ERRORS = 0.05  # share of scorings
REJECTED = 0.9  # share of tokens

METRICS = (
    "step", "reward/mean", "reward/flat_groups", "reward/error_rate", "reward/timeout_rate", "actor/entropy",
    "response_length/mean", "response_length/clip_ratio", "mismatch_kl/mean", "rollout/bubble_ratio",
    "timing_s/reward", "timing_s/step", "actor/skipped_updates", "actor/rejected", "rollout/dropped",
    "rollout/samples",
)  # fmt: skip
"""What rows need to have for all rules."""

Row = Mapping[str, Any]


class Advice(NamedTuple):
    name: str  # of the rule
    wrong: str  # what is wrong, a sentence
    change: str  # what to change, a sentence


class Steps:
    """The steps of a run in order, and its configuration as in config.json, which may lack anything."""

    def __init__(self, rows: Sequence[Row], config: Mapping[str, Any]) -> None:
        self.rows, self._config = rows, config
        self.recent = rows[-RECENT:]
        self.phrase = f"the last {len(self.recent)} steps"

    def now(self, key: str) -> float | None:
        """Mean over the newest steps."""
        return _mean(self.recent, key)

    def start(self, key: str) -> float | None:
        """Mean over the first steps; None while these are among the newest."""
        return _mean(self.rows[:START], key) if len(self.rows) >= START + RECENT else None

    def total(self, key: str) -> float:
        """Sum over the newest steps."""
        return sum(row.get(key) or 0 for row in self.recent)

    @property
    def solved(self) -> bool:
        """Whether almost all responses have the full reward of a scale from 0 to 1."""
        reward = self.now("reward/mean")
        return reward is not None and SOLVED <= reward <= 1

    def setting(self, section: str, key: str) -> Any:
        table = self._config.get(section)
        return table.get(key) if isinstance(table, Mapping) else None

    @property
    def has_groups(self) -> bool:
        """Whether the algorithm learns from the differences within a group."""
        recipe = ALGORITHMS.get(str(self.setting("trainer", "algorithm")))
        return recipe is None or recipe.advantage in ("group-mean", "leave-one-out", "decoupled")


def advise(rows: Sequence[Row], config: Mapping[str, Any]) -> list[Advice]:
    """The most serious first; empty for a healthy run and for its first steps."""
    steps = Steps(rows, config)
    return [] if len(rows) < LEAST else [found for rule in RULES for found in rule(steps)]


def _mean(rows: Sequence[Row], key: str) -> float | None:
    known = [row[key] for row in rows if row.get(key) is not None]
    return fmean(known) if known and all(map(isfinite, known)) else None


def _erring(steps: Steps) -> Iterator[Advice]:
    errors, timeouts = steps.now("reward/error_rate") or 0.0, steps.now("reward/timeout_rate") or 0.0
    if timeouts >= ERRORS:
        yield Advice(
            "timeouts",
            f"{timeouts:.0%} of the scorings in {steps.phrase} took longer than reward.timeout_s.",
            "Raise reward.timeout_s, or make the reward faster.",
        )
    if errors - timeouts >= ERRORS:
        yield Advice(
            "erring",
            f"{errors - timeouts:.0%} of the scorings in {steps.phrase} ended with an error.",
            "Read the errors with `rhymed logs --process 'reward-*' --level warning`, and correct the reward.",
        )


def _flat(steps: Steps) -> Iterator[Advice]:
    flat, reward = steps.now("reward/flat_groups"), steps.now("reward/mean")
    if flat is None or flat < FLAT or not steps.has_groups:
        return
    wrong = (
        f"In {flat:.0%} of the groups of {steps.phrase} all rewards are equal: almost nothing is learned from them."
    )
    if steps.solved:
        change = "The prompts are solved: end the run, or continue with harder rows."
    elif reward is not None and 0 <= reward <= 0.1:
        change = (
            "Give partial rewards, take easier rows, or raise rollout.group_size; `rhymed check` tries the reward."
        )
    else:
        change = "Give rewards between the extremes, raise rollout.group_size, or set trainer.dynamic_sampling."
    yield Advice("flat", wrong, change)


def _collapsed(steps: Steps) -> Iterator[Advice]:
    now, start = steps.now("actor/entropy"), steps.start("actor/entropy")
    if now is None or start is None or start <= 0 or now > COLLAPSED * start:
        return
    if steps.solved:
        return  # the policy is certain because its responses are right
    yield Advice(
        "entropy",
        f"The entropy fell from {start:.2g} to {now:.2g} nats per token: the policy hardly explores any more.",
        "Lower trainer.lr, raise trainer.clip_eps_high or rollout.temperature, or return to an earlier checkpoint.",
    )


def _longer(steps: Steps) -> Iterator[Advice]:
    now, start = steps.now("response_length/mean"), steps.start("response_length/mean")
    before, after = steps.start("reward/mean"), steps.now("reward/mean")
    if now is None or start is None or start <= 0 or now < GREW * start:
        return
    if before is None or after is None or after - before >= BETTER:
        return  # unknown, or longer and better
    yield Advice(
        "length",
        f"Responses grew from {start:.0f} to {now:.0f} tokens, and the reward did not.",
        'Set trainer.overlong_cache, or an algorithm that does not favour length (trainer.algorithm = "dr_grpo").',
    )


def _cut(steps: Steps) -> Iterator[Advice]:
    """Looks at the newest steps alone: a policy often learns within a few to end its responses."""
    limit, rows = steps.setting("rollout", "max_response_length"), steps.rows[-NEWEST:]
    cut, phrase = _mean(rows, "response_length/clip_ratio"), f"the last {len(rows)} steps"
    if cut is None or cut < CUT:
        return
    at = f" of {limit:,} tokens" if isinstance(limit, int) else ""
    yield Advice(
        "clipped",
        f"{cut:.0%} of the responses in {phrase} are cut at the limit{at}, many of them before their answer.",
        "Raise rollout.max_response_length, ask for shorter answers in the prompt, or set trainer.overlong_cache.",
    )


def _mismatch(steps: Steps) -> Iterator[Advice]:
    mismatch = steps.now("mismatch_kl/mean")
    if mismatch is None or mismatch < MISMATCH:
        return
    stale = steps.setting("schedule", "max_staleness")
    yield Advice(
        "mismatch",
        f"Engine and trainer give the same tokens different probabilities: {mismatch:.2g} nats per token.",
        "Lower schedule.max_staleness, or set trainer.correction."
        if isinstance(stale, int) and stale > 0
        else 'Set model.dtype = "float32" to see whether precision is the reason, or set trainer.correction.',
    )


def _skipped(steps: Steps) -> Iterator[Advice]:
    skipped = steps.total("actor/skipped_updates")
    if skipped:
        yield Advice(
            "skipped",
            f"{skipped:.0f} optimizer steps of {steps.phrase} were left out because their gradient was not finite.",
            'Lower trainer.lr, or set model.train_dtype = "float32".',
        )


def _rejected(steps: Steps) -> Iterator[Advice]:
    share = steps.now("actor/rejected")
    if share is not None and share >= REJECTED:
        yield Advice(
            "rejected",
            f"{share:.0%} of the tokens of {steps.phrase} were left out by trainer.correction.",
            'Set trainer.correction = "token-tis", widen its limits, or find why engine and trainer differ.',
        )


def _dropped(steps: Steps) -> Iterator[Advice]:
    dropped = steps.total("rollout/dropped")
    made = dropped + steps.total("rollout/samples")
    if made and dropped / made >= ERRORS:
        yield Advice(
            "dropped",
            f"{dropped / made:.0%} of the samples of {steps.phrase} were dropped.",
            "Read the reasons with `rhymed logs --level warning`.",
        )


def _starved(steps: Steps) -> Iterator[Advice]:
    empty, step_s, reward_s = (steps.now(key) for key in ("rollout/bubble_ratio", "timing_s/step", "timing_s/reward"))
    if step_s and reward_s is not None and reward_s >= SCORING * step_s:
        yield Advice(
            "scoring",
            f"{reward_s / step_s:.0%} of a step's time is spent on scoring after the last sample is generated.",
            "Raise reward.workers, or make the reward faster.",
        )
    if empty is not None and empty >= EMPTY:
        ahead = steps.setting("schedule", "run_ahead")
        yield Advice(
            "starved",
            f"{empty:.0%} of the engines' slot time in {steps.phrase} had no sample.",
            "Raise rollout.prompts_per_step, or use fewer rollout workers."
            if ahead
            else "Set schedule.run_ahead = 1, raise rollout.prompts_per_step, or use fewer rollout workers.",
        )


RULES: tuple[Callable[[Steps], Iterator[Advice]], ...] = (
    _erring,
    _skipped,
    _rejected,
    _mismatch,
    _flat,
    _collapsed,
    _longer,
    _cut,
    _dropped,
    _starved,
)
