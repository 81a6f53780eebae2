"""Sums over the tokens of a step, and the metrics that these become.

They stay on the device of their tokens until the step is over: reading one waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor

from rhymed.core.algorithms import Recipe
from rhymed_workers.trainer.algorithms.losses import TokenLosses, k3
from rhymed_workers.trainer.ranks import Alone

Sum: TypeAlias = "Tensor | float"

COUNTS = ("tokens", "compared", "computed")
ADDED = (*COUNTS, "loss", "entropy", "clipped", "rejected", "kl", "mismatch")
"""Sums over tokens. `grad_norms`, `skipped` and `extra` are the same in all ranks."""


@dataclass
class Sums:
    tokens: int = 0
    loss: Sum = 0.0
    entropy: Sum = 0.0
    clipped: Sum = 0.0
    rejected: Sum = 0.0
    kl: Sum = 0.0
    mismatch: Sum = 0.0
    compared: int = 0  # tokens summed in `mismatch`
    computed: int = 0  # tokens through the model, with prompts, without padding
    grad_norms: list[float] = field(default_factory=list)
    extra: dict[str, float] = field(default_factory=dict)  # metrics of the whole step
    skipped: int = 0  # optimizer steps with a loss or gradient that is not finite

    @classmethod
    def of(cls, parts: Sequence[Sums]) -> Sums:
        """Of all parts of a step, added in this order."""
        total = cls()
        for part in parts:
            for name in ADDED:
                setattr(total, name, getattr(total, name) + getattr(part, name))
        return total

    def add(self, found: TokenLosses, entropy_N: Tensor) -> None:
        self.tokens += len(entropy_N)
        self.entropy += _total(entropy_N)
        self.clipped += _total(found.clipped_N)
        if found.rejected_N is not None:
            self.rejected += _total(found.rejected_N)
        if found.kl_N is not None:
            self.kl += _total(found.kl_N)

    def compare(self, engine_N: Tensor, logp_N: Tensor) -> None:
        """The same tokens' log-probs in the engine and in the trainer, of one version."""
        self.mismatch += _total(k3(engine_N, logp_N).nan_to_num(nan=0.0))
        self.compared += len(engine_N)

    def together(self, ranks: Alone) -> None:
        """Becomes the sums of all ranks, where each has seen its own tokens."""
        if ranks.size == 1:
            return
        found = ranks.sum([float(getattr(self, name)) for name in ADDED])
        for name, value in zip(ADDED, found, strict=True):
            setattr(self, name, int(value) if name in COUNTS else value)

    def metrics(self, recipe: Recipe) -> dict[str, float]:
        """A mean over no tokens is left out, not 0."""
        updates = max(1, len(self.grad_norms) + self.skipped)
        metrics = {"actor/loss": float(self.loss) / updates, "actor/skipped_updates": float(self.skipped)}
        metrics["actor/tokens"] = float(self.tokens)
        if self.grad_norms:
            metrics["actor/grad_norm"] = sum(self.grad_norms) / len(self.grad_norms)
        if self.tokens:
            metrics["actor/entropy"] = float(self.entropy) / self.tokens
            metrics["actor/pg_clipfrac"] = float(self.clipped) / self.tokens
            if recipe.rejects:
                metrics["actor/rejected"] = float(self.rejected) / self.tokens
            if recipe.kl_coef and recipe.kl_in == "loss":
                metrics["actor/kl"] = float(self.kl) / self.tokens
        if self.compared:
            metrics["mismatch_kl/mean"] = float(self.mismatch) / self.compared
        return metrics | self.extra


def _total(given_N: Tensor) -> Tensor:
    """Summed in the tensor's own precision, as one number of float64."""
    return (given_N.float() if given_N.dtype == torch.bool else given_N).sum().double()
