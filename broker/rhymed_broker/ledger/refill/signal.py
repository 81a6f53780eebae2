"""Whether a group of samples has a signal, and how many groups a step may replace. Pure, part of the ledger.

A group whose samples all have the same reward has no advantages, so it changes no weights (DAPO, arXiv 2503.14476,
section 3.2). The metric is the reward as it was scored, or one scorer's points; what the trainer adds to rewards does
not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rhymed.config import Trainer
from rhymed.messages import NO_SIGNAL, Score
from rhymed_broker.states import Sample

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
        return score.reward if self.metric == REWARD else score.parts.get(self.metric, score.reward)

    def is_flat(self, group: Sequence[Sample]) -> bool:
        """Of a complete group. One with fewer than two scored samples has no signal either."""
        points = [sample.points for sample in group if sample.state != "dropped" and sample.points is not None]
        return len(points) < 2 or max(points) - min(points) <= self.tolerance
