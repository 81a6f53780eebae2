"""The result of scoring a sample: each scorer's verdict, and the one reward or error that they combine to.

The reward is the weighted sum of the parts. A scorer that does not apply to a sample adds nothing; one scorer's error
is the sample's error. Pure; knows no process and no user code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from rhymed.config import Scorer


class Verdict(msgspec.Struct, frozen=True):
    """One scorer's result. Neither reward nor error: it does not apply to this sample."""

    label: str = ""  # of the scorer, see rhymed.config.Scorer
    reward: float | None = None  # before its weight
    error: str | None = None
    timeout: bool = False
    seconds: float = 0.0  # of scoring alone


class Outcome(msgspec.Struct, frozen=True):
    """The sample's result: either reward or error."""

    reward: float | None = None
    error: str | None = None
    timeout: bool = False
    seconds: float = 0.0
    parts: dict[str, float] = {}  # label -> reward of that scorer, before its weight
    failed: str = ""  # label of the scorer that failed


def combine(scorers: Sequence[Scorer], verdicts: Sequence[Verdict]) -> Outcome:
    """`verdicts` are those of the first scorers, in order; scoring ends at the first error."""
    parts = {verdict.label: verdict.reward for verdict in verdicts if verdict.reward is not None}
    seconds = sum(verdict.seconds for verdict in verdicts)
    for verdict in verdicts:
        if verdict.error is not None:
            return Outcome(
                error=verdict.error, timeout=verdict.timeout, seconds=seconds, parts=parts, failed=verdict.label
            )
    if not parts:
        labels = ", ".join(scorer.label for scorer in scorers)
        error = f"no scorer applies to this sample: {labels} returned None, and at least one must give a number"
        return Outcome(error=error, seconds=seconds)
    reward = sum(scorer.weight * parts[scorer.label] for scorer in scorers if scorer.label in parts)
    if not math.isfinite(reward):
        return Outcome(error=f"the weighted sum of {parts} is {reward}: rewards are too large", parts=parts)
    return Outcome(reward=reward, seconds=seconds, parts=parts)
