"""How rewards become a loss: the algorithm, and what changes in it. A part of `[trainer]`."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from rhymed.algorithms import ALGORITHMS, SETTINGS, Recipe, expand
from rhymed.algorithms.recipe import Advantage, Aggregation, Correction, Estimator, Loss, Place, Ratio, Scale
from rhymed.config.base import Section


class Losses(Section):
    """Keys without a default have the algorithm's own; `rhymed check` prints them."""

    algorithm: str = Field("grpo", description=f"how rewards become a loss: {', '.join(ALGORITHMS)}")
    advantage: Advantage | None = Field(
        None,
        description="reward minus the group's mean, or minus the mean of the group's others, or the sum of the"
        " rewards of this and later tokens; gae: with a critic; none: not trained on",
    )
    advantage_scale: Scale | None = Field(
        None,
        description="what advantages are divided by. group: the group's standard deviation; batch: the step's;"
        " mean: the group's mean",
    )
    whiten: bool | None = Field(None, description="shift and scale advantages to mean 0 and variance 1 over tokens")
    gamma: float | None = Field(None, gt=0, le=1, description="discount per token of later rewards")
    gae_lambda: float | None = Field(
        None, ge=0, le=1, description="gae: share of each later step in a token's advantage, per token"
    )
    loss: Loss | None = Field(None, description="of a token; see docs/algorithms.md")
    ratio: Ratio | None = Field(
        None,
        description="importance ratio of each token, or of the sequence: geometric mean of its tokens' ratios, or"
        " their product",
    )
    clip_eps_low: float | None = Field(
        None, gt=0, lt=1, description="ratios are clipped below 1 - this; gmpo: their logarithms below -this"
    )
    clip_eps_high: float | None = Field(None, gt=0, description="and above 1 + this; gmpo: above this")
    dual_clip: float | None = Field(
        None, ge=0, description="loss of tokens with A < 0 is at most -A times this, which is above 1; 0: off"
    )
    cispo_min: float | None = Field(None, ge=0, description="lower limit of the ratio that weights a token")
    cispo_max: float | None = Field(None, gt=0, description="upper limit of the ratio that weights a token")
    sapo_tau_pos: float | None = Field(None, gt=0, description="slope of the gate of tokens with A > 0")
    sapo_tau_neg: float | None = Field(None, gt=0, description="slope of the gate of tokens with A <= 0")
    dppo_mask_low: float | None = Field(
        None, gt=0, description="a token with A <= 0 whose probability fell by more than this is left out"
    )
    dppo_mask_high: float | None = Field(
        None, gt=0, description="a token with A > 0 whose probability rose by more than this is left out"
    )
    dppo_kl_tau: float | None = Field(None, ge=0, description="weight of the squared logarithm of the ratio")
    aggregation: Aggregation | None = Field(
        None,
        description="mean over the batch's tokens, or over its samples of the mean or sum over their tokens;"
        " norm: of the sum divided by rollout.max_response_length",
    )
    kl_coef: float | None = Field(
        None, ge=0, description="weight of the KL term to the initial model; 0: no reference model is loaded"
    )
    kl_estimator: Estimator | None = Field(None, description="of a token's KL")
    kl_in: Place | None = Field(None, description="where the KL term is added")
    correction: Correction | None = Field(
        None, description="of the difference between the engine's and the trainer's probabilities"
    )
    tis_cap: float | None = Field(None, gt=0, description="token-tis: upper limit of a token's weight")
    sequence_mask_cap: float | None = Field(
        None, gt=0, description="sequence-mask: samples are weighted by their ratio, and left out if it is higher"
    )
    icepop_min: float | None = Field(None, ge=0, description="icepop: tokens of a lower ratio are left out")
    icepop_max: float | None = Field(None, gt=0, description="icepop: tokens of a higher ratio are left out")
    geometric_min: float | None = Field(
        None, ge=0, description="geometric: samples whose tokens' ratios have a lower geometric mean are left out"
    )
    geometric_max: float | None = Field(None, gt=0, description="geometric: and those with a higher one")
    off_policy_mask: float | None = Field(
        None, ge=0, description="samples with A < 0 and a mean KL to the engine above this are left out; 0: off"
    )
    overlong_filter: bool | None = Field(None, description="leave samples that were cut at the limit out of the loss")
    overlong_cache: float | None = Field(
        None,
        ge=0,
        le=1,
        description="last part of rollout.max_response_length in which a longer response costs reward, as a share;"
        " 0: off",
    )
    overlong_penalty: float | None = Field(None, gt=0, description="reward that the longest response loses")

    @property
    def recipe(self) -> Recipe:
        """The algorithm with every part decided."""
        return expand(self.algorithm, {name: getattr(self, name) for name in SETTINGS})

    @model_validator(mode="after")
    def _expands(self) -> Self:
        _ = self.recipe
        if self.dual_clip is not None and 0 < self.dual_clip <= 1:
            raise ValueError(f"dual_clip = {self.dual_clip:g} must be above 1, or 0 for none")
        return self
