"""The result of scoring a sample: each scorer's verdict, and the one reward or error that they combine to.

The reward is the weighted sum of the parts. A scorer that does not apply to a sample adds nothing; one scorer's error
is the sample's error. Pure; knows no process and no user code. What a scorer wrote is printable from here on.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rhymed.core.config import Scorer
from rhymed.core.messages import TokenReward
from rhymed.core.messages.fields import Word
from rhymed_workers.reward.scorers.result import LARGEST, TOO_LARGE, Result, Verdict


class Outcome(Result, msgspec.Struct, frozen=True):
    """The sample's result: either reward or error. `named` and `notes` have names as label/name."""

    parts: dict[Word, float] = {}  # label -> reward of that scorer, before its weight
    failed: str = ""  # label of the scorer that failed
    unstored: bool = False  # nothing to score: the store does not have the sample

    def kept(self, labels: Sequence[str], reward: float) -> dict[str, float]:
        """With the reward: the parts of scorers `labels`, and the values that they name; empty if there is only the
        reward.

        With several scorers every part is kept, as an algorithm may learn from each. Of an error that counts as a
        reward (`reward.on_error = "zero"`) each part is that reward, whatever other scorers gave before.
        """
        found = self.parts | self.named if self.error is None else dict.fromkeys(labels, reward)
        return {} if len(labels) == 1 and list(found.values()) == [reward] else found


def combine(scorers: Sequence[Scorer], verdicts: Sequence[Verdict]) -> Outcome:
    """`verdicts` are those of the first scorers, in order; scoring ends at the first error."""
    parts = {verdict.label: verdict.reward for verdict in verdicts if verdict.reward is not None}
    named = {f"{verdict.label}/{name}": value for verdict in verdicts for name, value in verdict.named.items()}
    notes = {f"{verdict.label}/{name}": text for verdict in verdicts for name, text in verdict.notes.items()}
    metrics = {name: value for verdict in verdicts for name, value in verdict.metrics.items()}
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
    if not abs(reward) <= LARGEST:
        return Outcome(error=f"the weighted sum of {parts} is {reward:g}: {TOO_LARGE}", parts=parts)
    return Outcome(
        reward=reward,
        timeout=any(verdict.timeout for verdict in verdicts),
        token_rewards=_earned(scorers, verdicts),
        seconds=seconds,
        parts=parts,
        named=named,
        notes=notes,
        metrics=metrics,
    )


def _earned(scorers: Sequence[Scorer], verdicts: Sequence[Verdict]) -> list[TokenReward]:
    """Of each token that earned something, the weighted sum."""
    weights = {scorer.label: scorer.weight for scorer in scorers}
    sums: dict[int, float] = {}
    for verdict in verdicts:
        for position, reward in verdict.token_rewards:
            sums[position] = sums.get(position, 0.0) + weights[verdict.label] * reward
    return [(position, reward) for position, reward in sorted(sums.items()) if reward]
