"""The critic as the learner sees it: values, then targets, then an update after each mini-batch, and metrics.

Owns the value model and its optimizer. It is trained in full, also where the policy has adapters only. Two critics
with equal state and equal batches end up with equal bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rhymed.config import Config, Trainer
from rhymed_workers.trainer.algorithms import gae
from rhymed_workers.trainer.critic import state
from rhymed_workers.trainer.critic.model import ValueModel
from rhymed_workers.trainer.critic.start import find
from rhymed_workers.trainer.critic.targets import Targets
from rhymed_workers.trainer.optim import optimizer
from rhymed_workers.trainer.policy.backbone import Compute
from rhymed_workers.trainer.policy.packing import MicroBatch
from rhymed_workers.trainer.ranks.group import ALONE, Alone
from rhymed_workers.trainer.saving.snapshot import Write


@dataclass
class Sums:
    """A tensor stays on its device until it is needed: reading it waits for the device."""

    loss: float = 0.0
    tokens: int = 0
    clipped: Tensor | int = 0
    skipped: int = 0  # updates with a loss or gradient that is not finite
    grad_norms: list[float] = field(default_factory=list)


class Critic:
    def __init__(self, config: Trainer, model: ValueModel, ranks: Alone = ALONE) -> None:
        self._config, self.model, self._ranks = config, model, ranks
        self._sums = Sums()
        self._loss: Tensor | float = 0.0  # of the micro-batches since the last update
        self._optimizer = optimizer.build(config, model.parameters(), config.critic.lr)

    @classmethod
    def at_start(cls, config: Config, compute: Compute, ranks: Alone = ALONE) -> Critic:
        """As it is before the first step. Raises `ConfigError`."""
        return cls(config.trainer, ValueModel.load(find(config), compute, ranks.mesh), ranks)

    def alone(self, step: int) -> bool:
        """Whether only the critic is trained in training step `step` (from 0)."""
        return step < self._config.critic.warmup_steps

    def values(self, batches: Sequence[MicroBatch], count: int) -> Tensor:
        """(count,) values of the states before all response tokens of a step; 0 for tokens in no batch."""
        values_N, known_N = torch.zeros(count, device=self.model.device), torch.zeros(count, dtype=torch.bool)
        for batch, counts in self._ranks.share(batches):
            found_N, flat_N = self.model.values(batch), torch.from_numpy(batch.flat_N)
            if counts:
                values_N[flat_N.to(values_N.device)], known_N[flat_N] = found_N, True
        return self._ranks.merge(values_N.cpu(), known_N)

    def follow(self, batch: MicroBatch) -> None:
        """As `accumulate` with a loss of 0, where other ranks compute theirs."""
        self.model.backward(batch, lambda values_N: (values_N * 0).sum())

    def accumulate(self, batch: MicroBatch, targets: Targets) -> None:
        """Add the gradient of a micro-batch's value loss."""
        clip, device = self._config.critic.value_clip or None, self.model.device
        flat_N = torch.from_numpy(batch.flat_N)
        self._sums.tokens += int((targets.weights_N[flat_N] > 0).sum())
        old_N, returns_N, weights_N = (
            of_N[flat_N].to(device) for of_N in (targets.old_N, targets.returns_N, targets.weights_N)
        )

        def loss(values_N: Tensor) -> Tensor:
            terms = gae.value_terms(values_N, old_N, returns_N, clip)
            self._sums.clipped += (terms.clipped_N & (weights_N > 0)).sum()
            return (terms.loss_N * weights_N).sum()

        self._loss += self.model.backward(batch, loss)

    def update(self) -> None:
        """With the gradients since the last update."""
        sums, mine, self._loss = self._sums, float(self._loss), 0.0
        (loss,) = self._ranks.sum([mine])
        norm = optimizer.step(self._optimizer, loss, self._config.max_grad_norm, "critic")
        if norm is None:
            sums.skipped += 1
        else:
            sums.grad_norms.append(norm)
            sums.loss += loss

    def metrics(self, targets: Targets) -> dict[str, float]:
        """Of the step that ends here: its updates, and the values before the first one. A metric that was not
        computed is left out.
        """
        sums, self._sums = self._sums, Sums()
        tokens, clipped = self._ranks.sum([sums.tokens, float(sums.clipped)])
        trained_N = targets.weights_N > 0
        metrics = {"critic/skipped_updates": float(sums.skipped)}
        if sums.grad_norms:
            metrics["critic/loss"] = sums.loss / len(sums.grad_norms)
            metrics["critic/grad_norm"] = float(np.mean(sums.grad_norms))
        if tokens:
            metrics |= {
                "critic/clipfrac": clipped / tokens,
                "critic/value_mean": float(targets.old_N[trained_N].mean()),
                "critic/return_mean": float(targets.returns_N[trained_N].mean()),
            }
        explained = gae.explained_variance(targets.old_N, targets.returns_N, trained_N)
        return metrics if explained is None else metrics | {"critic/explained_variance": explained}

    def snapshot(self, steps: int, *, copy: bool = False) -> Write:
        """For a checkpoint, see `taken`. All ranks call it."""
        return state.snapshot(self.model, self._optimizer, steps, self._ranks, copy=copy)

    def load(self, folder: Path, steps: int) -> None:
        """From the checkpoint of `steps` trained steps. Raises `CheckpointError`."""
        state.load(folder, self.model, self._optimizer, steps)
