"""The critic of algorithms that have one. A table inside `[trainer]`."""

from __future__ import annotations

from pydantic import Field

from rhymed.config.base import Section


class Critic(Section):
    """Optimizer, betas, weight decay and the limit of the gradient's norm are those of `[trainer]`."""

    lr: float = Field(1e-5, gt=0, description="learning rate of the critic, constant")
    warmup_steps: int = Field(
        0, ge=0, description="training steps at the start in which only the critic learns and the policy is frozen"
    )
    value_clip: float = Field(
        0.5, ge=0, description="values are trained at most this far from those before the step; 0: no limit"
    )
    model: str = Field(
        "", description="model that the critic starts from, with the policy's tokens; empty: model.path"
    )
