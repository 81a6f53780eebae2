"""`Recipe`: an algorithm with every part decided, as the trainer reads it.

Knows neither torch nor the configuration's files. A recipe is made by `rhymed.algorithms.expand`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Scale: TypeAlias = Literal["none", "group"]
Aggregation: TypeAlias = Literal["token-mean", "seq-mean-token-mean"]
Correction: TypeAlias = Literal["none", "token-tis"]


@dataclass(frozen=True)
class Recipe:
    """Defaults are those that most algorithms share; `ALGORITHMS` says what each changes."""

    name: str
    source: str  # where the defaults were published
    advantage_scale: Scale = "group"  # what the centred rewards are divided by
    clip_eps_low: float = 0.2
    clip_eps_high: float = 0.2
    aggregation: Aggregation = "token-mean"
    kl_coef: float = 0.0  # 0: no reference model
    correction: Correction = "token-tis"  # of the difference between engine and trainer
    tis_cap: float = 2.0
