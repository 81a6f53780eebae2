"""How rewards become a loss: the algorithm, and what changes in it. A part of `[trainer]`."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from rhymed.algorithms import ALGORITHMS, SETTINGS, Recipe, expand
from rhymed.algorithms.recipe import Aggregation, Correction, Scale
from rhymed.config.base import Section


class Losses(Section):
    """Keys without a default have the algorithm's own; `rhymed check` prints them."""

    algorithm: str = Field("grpo", description=f"how rewards become a loss: {', '.join(ALGORITHMS)}")
    advantage_scale: Scale | None = Field(
        None, description="what advantages are divided by: the standard deviation of the group, or nothing"
    )
    clip_eps_low: float | None = Field(None, gt=0, lt=1, description="importance ratios are clipped below 1 - this")
    clip_eps_high: float | None = Field(None, gt=0, description="and above 1 + this")
    aggregation: Aggregation | None = Field(
        None, description="mean over the batch's tokens, or mean over its samples of the mean over their tokens"
    )
    kl_coef: float | None = Field(
        None, ge=0, description="weight of the KL term to the initial model; 0: no reference model is loaded"
    )
    correction: Correction | None = Field(
        None, description="of the difference between the engine's and the trainer's probabilities"
    )
    tis_cap: float | None = Field(None, gt=0, description="token-tis: upper limit of the engine/trainer ratio")

    @property
    def recipe(self) -> Recipe:
        """The algorithm with every part decided."""
        return expand(self.algorithm, {name: getattr(self, name) for name in SETTINGS})

    @model_validator(mode="after")
    def _expands(self) -> Self:
        _ = self.recipe
        return self
