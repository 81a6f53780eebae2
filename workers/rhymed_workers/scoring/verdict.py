"""The result of scoring a sample: each scorer's verdict, and the one reward or error that they combine to.

The reward is the weighted sum of the parts. A scorer that does not apply to a sample adds nothing; one scorer's error
is the sample's error. Weights in the loss multiply: those of the sample, and those of each token. Pure; knows no
process and no user code. What a scorer wrote is printable from here on.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

import msgspec

from rhymed.config import Scorer
from rhymed.messages.fields import Report, Word, Worded


class Verdict(Worded, msgspec.Struct, frozen=True):
    """One scorer's result. Neither reward nor error: it does not apply to this sample."""

    label: str = ""  # of the scorer, see rhymed.config.Scorer
    reward: float | None = None  # before the scorer's weight
    weight: float = 1.0  # of the sample in the loss
    token_weights: bytes = b""  # in the loss: float32, one per response token; empty: all 1
    named: dict[Word, float] | None = None  # parts of its reward that it names
    error: Report | None = None
    unsuitable: bool = False  # the error is the row's: no response to it can be scored
    timeout: bool = False
    seconds: float = 0.0  # of scoring alone


class Outcome(Worded, msgspec.Struct, frozen=True):
    """The sample's result: either reward or error."""

    reward: float | None = None
    weight: float = 1.0  # as in `Verdict`
    token_weights: bytes = b""
    error: Report | None = None
    timeout: bool = False
    seconds: float = 0.0
    parts: dict[Word, float] = {}  # label -> reward of that scorer, before its weight
    named: dict[Word, float] = {}  # label/name -> part of that scorer's reward, for people
    failed: str = ""  # label of the scorer that failed
    unstored: bool = False  # nothing to score: the store does not have the sample

    def shown(self) -> dict[str, float]:
        """With the reward: the scorers' parts and what they name; empty if the reward is all there is."""
        found = self.parts | self.named
        return {} if list(found.values()) == [self.reward] else found


def combine(scorers: Sequence[Scorer], verdicts: Sequence[Verdict]) -> Outcome:
    """`verdicts` are those of the first scorers, in order; scoring ends at the first error."""
    parts = {verdict.label: verdict.reward for verdict in verdicts if verdict.reward is not None}
    named = {
        f"{verdict.label}/{name}": value for verdict in verdicts for name, value in (verdict.named or {}).items()
    }
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
    weight = math.prod(verdict.weight for verdict in verdicts)
    token_weights = _product([verdict.token_weights for verdict in verdicts if verdict.token_weights])
    if not _are_weights(array("f", [weight, *token_weights, weight * max(token_weights, default=1.0)])):
        return Outcome(error="the product of the scorers' loss weights is too large or no weight", parts=parts)
    return Outcome(
        reward=reward,
        weight=weight,
        token_weights=token_weights.tobytes(),
        seconds=seconds,
        parts=parts,
        named=named,
    )


def _product(parts: Sequence[bytes]) -> array[float]:
    """Of token weights of one response, token by token."""
    product = array("f")
    for part in parts:
        other = array("f", part)
        product = array("f", [a * b for a, b in zip(product, other, strict=True)]) if product else other
    return product


def _are_weights(weights: Sequence[float]) -> bool:
    return all(math.isfinite(weight) and weight >= 0 for weight in weights)
