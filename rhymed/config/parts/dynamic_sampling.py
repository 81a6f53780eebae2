"""`[trainer.dynamic_sampling]`: groups without signal are dropped and replaced."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rhymed.config.base import Section


class DynamicSampling(Section):
    enabled: bool | None = Field(
        None,
        description="drop groups whose samples all have the same metric, and replace them by the next prompts;"
        " empty: if the algorithm does (dapo)",
    )
    metric: str = Field(
        "reward", min_length=1, description="what is compared: reward, or the name of one of several scorers"
    )
    tolerance: float = Field(
        1e-6, ge=0, allow_inf_nan=False, description="values that differ by no more than this are the same"
    )
    max_refills: float = Field(
        9.0,
        ge=0,
        allow_inf_nan=False,
        description="most groups that a step may replace, as a multiple of rollout.prompts_per_step",
    )
    on_exhausted: Literal["keep", "drop"] = Field(
        "keep",
        description="groups without signal that cannot be replaced any more: keep them, or train on fewer groups",
    )

    def most_refills(self, prompts_per_step: int) -> int:
        """Groups that a step may replace, if the dataset has enough others."""
        return int(self.max_refills * prompts_per_step)
