"""Settings of LoRA."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator

from rhymed.config.base import Section

ALL_LINEAR = "all-linear"
"""PEFT's name for every linear layer but the head."""


class Lora(Section):
    """Train low-rank adapters of linear layers instead of the weights. The section switches it on; without it, all
    weights are trained."""

    rank: int = Field(16, gt=0, le=1 << 16, description="r: columns of B and rows of A")
    alpha: float = Field(32.0, gt=0, description="the adapter B A is multiplied by alpha / rank")
    targets: list[str] = Field(
        [], description="names of linear layers, or their last parts, e.g. q_proj; empty: all but the output head"
    )
    adapter: str = Field("", description="folder of an adapter in PEFT's format to begin with; empty: a new one")

    @field_validator("targets", mode="before")
    @classmethod
    def _all(cls, value: Any) -> Any:
        return [] if value in (ALL_LINEAR, [ALL_LINEAR]) else value

    @property
    def scale(self) -> float:
        """What the product of the two matrices is multiplied by."""
        return self.alpha / self.rank
