"""`Recipe`: an algorithm with every part decided, as the trainer reads it.

Knows neither torch nor files. A recipe is made by `rhymed.core.algorithms.expand`; every field but name and source is
a setting of `[trainer]`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Advantage: TypeAlias = Literal["group-mean", "leave-one-out", "decoupled", "return", "gae", "none"]
Scale: TypeAlias = Literal["none", "group", "batch", "mean"]
Loss: TypeAlias = Literal["clip", "cispo", "gmpo", "sapo", "dppo", "likelihood"]
Ratio: TypeAlias = Literal["token", "sequence", "sequence-product"]
Aggregation: TypeAlias = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]
Estimator: TypeAlias = Literal["k1", "k2", "k3"]
Place: TypeAlias = Literal["loss", "reward"]
Correction: TypeAlias = Literal["none", "token-tis", "sequence-mask", "icepop", "geometric"]


@dataclass(frozen=True)
class Recipe:
    """Defaults are those that most algorithms share; each entry of `ALGORITHMS` lists what it changes."""

    name: str
    source: str  # where the defaults were published

    advantage: Advantage = "group-mean"
    advantage_scale: Scale = "group"
    whiten: bool = False
    gamma: float = 1.0
    gae_lambda: float = 1.0

    loss: Loss = "clip"
    ratio: Ratio = "token"
    clip_eps_low: float = 0.2
    clip_eps_high: float = 0.2
    dual_clip: float = 0.0  # 0: off
    cispo_min: float = 0.0
    cispo_max: float = 5.0
    sapo_tau_pos: float = 1.0
    sapo_tau_neg: float = 1.05
    dppo_mask_low: float = 0.2
    dppo_mask_high: float = 0.2
    dppo_kl_tau: float = 1e-3
    aggregation: Aggregation = "token-mean"

    kl_coef: float = 0.0  # 0: no reference model
    kl_estimator: Estimator = "k3"
    kl_in: Place = "loss"

    entropy_coef: float = 0.0  # of the bonus; with a target its first value
    entropy_target: float = 0.0  # nats per token; 0: the coefficient is fixed
    entropy_coef_min: float = 0.0
    entropy_coef_max: float = 1.0
    entropy_coef_delta: float = 0.005

    correction: Correction = "token-tis"  # of the difference between engine and trainer
    tis_cap: float = 2.0
    sequence_mask_cap: float = 3.0
    icepop_min: float = 0.5
    icepop_max: float = 5.0
    geometric_min: float = 0.999
    geometric_max: float = 1.001
    off_policy_mask: float = 0.0  # nats per token; 0: off

    overlong_filter: bool = False
    overlong_cache: float = 0.0  # share of the longest response; 0: off
    overlong_penalty: float = 1.0

    @property
    def old_first(self) -> bool:
        """Whether rewards or advantages need the log-probs before the step's first update."""
        return self.kl_coef > 0 and self.kl_in == "reward"

    @property
    def dense(self) -> bool:
        """Whether a sample without advantage has a gradient, too."""
        return (
            self.critic
            or self.loss == "likelihood"
            or (self.kl_coef > 0 and self.kl_in == "loss")
            or (self.loss == "dppo" and self.dppo_kl_tau > 0)
            or self.entropy_bonus
        )

    @property
    def entropy_bonus(self) -> bool:
        return self.entropy_coef != 0 or self.entropy_target > 0

    @property
    def rejects(self) -> bool:
        """Whether the correction may leave tokens out."""
        return self.correction not in ("none", "token-tis") or self.off_policy_mask > 0

    @property
    def least_group(self) -> int:
        """Samples that a group needs: one sample has no mean to be compared with."""
        return 1 if self.advantage in ("return", "gae", "none") else 2

    @property
    def critic(self) -> bool:
        """Whether a second model estimates the value of every state."""
        return self.advantage == "gae"

    def whole_sequences(self, *, updates: int) -> bool:
        """Whether the loss of a token needs the other tokens of its sample, with so many updates per step.

        Before the first update all ratios are 1, so ratios of sequences need nothing then.
        """
        corrected = self.correction in ("sequence-mask", "geometric") or self.off_policy_mask > 0
        return corrected or (updates > 1 and (self.loss == "gmpo" or self.loss_ratio != "token"))

    @property
    def loss_ratio(self) -> Ratio:
        """The ratio that the loss uses; only the clipped loss has a choice."""
        return self.ratio if self.loss == "clip" else "token"
