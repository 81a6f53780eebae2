"""What scoring a sample came to: each scorer's verdict, and the one reward or error that they make together.

The reward is the weighted sum of the parts. A scorer that does not apply to a sample has no part in it; one scorer's
error is the sample's. Pure; knows no process and no user code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from rhymed.config import Scorer


class Verdict(msgspec.Struct, frozen=True):
    """One scorer's. Neither reward nor error: it does not apply to this sample."""

    label: str = ""  # of the scorer, see rhymed.config.Scorer
    reward: float | None = None  # before its weight
    error: str | None = None
    timeout: bool = False
    seconds: float = 0.0  # of scoring alone


class Outcome(msgspec.Struct, frozen=True):
    """The sample's. Exactly one of reward and error is given."""

    reward: float | None = None
    error: str | None = None
    timeout: bool = False
    seconds: float = 0.0
    parts: dict[str, float] = {}  # label -> what the scorer gave, before its weight
    failed: str = ""  # label of the scorer that the error is about


def combine(scorers: Sequence[Scorer], verdicts: Sequence[Verdict]) -> Outcome:
    """`verdicts` are of the first scorers, in their order; the last of them may be an error that ended it."""
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
