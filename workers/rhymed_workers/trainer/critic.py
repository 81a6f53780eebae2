"""The critic as the learner sees it: values, then targets, then an update after each mini-batch, and metrics.

Owns the value model and its optimizer. It is trained in full, also where the policy has adapters only. Two critics
with equal state and equal batches end up with equal bits.

`ValueModel` is the model, and `advantages` makes the targets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rhymed.core.algorithms import Recipe
from rhymed.core.config import Config, Trainer
from rhymed.core.errors import CheckpointError
from rhymed.inputs.models import find_critic
from rhymed_workers.trainer.algorithms import gae
from rhymed_workers.trainer.optim import moments, shards
from rhymed_workers.trainer.optim import optimizer as optimizers
from rhymed_workers.trainer.policy import sharded
from rhymed_workers.trainer.policy.backbone import (
    Compute,
    base_of,
    device_of,
    hidden_states,
    load_model,
    prepare,
)
from rhymed_workers.trainer.policy.packing import MicroBatch
from rhymed_workers.trainer.ranks import ALONE, Alone
from rhymed_workers.trainer.saving import Write, copied

NAME, STEPS = "critic", "steps"
FILE = f"{NAME}{shards.SUFFIX}"
"""In a checkpoint: `weight.<parameter>`, the names of `optim.moments`, and the steps."""


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
        self._optimizer = optimizers.build(config, model.parameters(), config.critic.lr)

    @classmethod
    def at_start(cls, config: Config, compute: Compute, ranks: Alone = ALONE) -> Critic:
        """As it is before the first step. Raises `ConfigError`."""
        return cls(config.trainer, ValueModel.load(find_critic(config), compute, ranks.mesh), ranks)

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
        norm = optimizers.step(self._optimizer, loss, self._config.max_grad_norm, "critic")
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
        """For the checkpoint of `steps` trained steps, see `copied`. All ranks call it, and each writes its part."""
        weights = {f"weight.{name}": parameter.detach() for name, parameter in self.model.named_parameters()}
        tensors = copied(weights | moments.tensors(self._optimizer, self.model.named_parameters()), copy=copy)
        tensors |= {STEPS: torch.tensor(steps)}
        return lambda folder: shards.save(folder, NAME, tensors, self._ranks.rank)

    def load(self, folder: Path, steps: int) -> None:
        """From the checkpoint of `steps` trained steps. Raises `CheckpointError` without a state of this critic."""
        if not (folder / FILE).is_file():
            raise CheckpointError(
                f"{folder} has no {FILE}, so it was written by an algorithm without critic: resume with that"
                " trainer.algorithm, or start a new run with model.path = this folder"
            )
        stored = shards.Stored(folder, NAME)
        saved = stored.take(STEPS, torch.tensor(steps))
        if saved is None or int(saved) != steps:
            of = "an unknown number of" if saved is None else int(saved)
            raise CheckpointError(f"{stored.place} is of {of} trained steps, the policy next to it of {steps}")
        weights = [
            (name, parameter.detach(), stored.take(f"weight.{name}", parameter.detach()))
            for name, parameter in self.model.named_parameters()
        ]
        other = f"{stored.place} is not of this critic (trainer.critic.model): it has"
        if missing := [name for name, _, found in weights if found is None]:
            raise CheckpointError(f"{other} no {missing[0]} of its shape")
        moments.restore(self._optimizer, self.model.named_parameters(), stored)
        if stored.left:
            raise CheckpointError(f"{other} {min(stored.left)}")
        for _, parameter, found in weights:
            shards.own(parameter).copy_(found)


# The value model: a language model whose head gives one number for each state instead of logits.
#
# The value of a response token is that of the state before it, at the position that predicts the token. It is
# computed on the policy's micro-batches, with the policy's own function of hidden states. The head begins at 0, so
# the values of the first step are exactly 0, and its advantages are the (discounted) rewards to go. Knows no rewards,
# no optimizer.

ValueLoss = Callable[[Tensor], Tensor]
"""Values of a micro-batch's response tokens, which carry gradient -> scalar."""


class ValueModel(nn.Module):
    def __init__(self, model: Any, dtype: torch.dtype = torch.float32) -> None:
        """`model`: a causal language model, whose head is not kept. `dtype`: in which its body computes."""
        super().__init__()
        self.body, self._dtype = base_of(prepare(model)), dtype
        self.head = nn.Linear(model.get_output_embeddings().weight.shape[1], 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.to(device_of(model))

    @classmethod
    def load(cls, folder: Path, compute: Compute | None = None, mesh: Any = None) -> ValueModel:
        """With the body of the causal language model in a Hugging Face folder, and a head that begins at 0.

        `mesh`: of the devices that share the weights.
        """
        compute = compute or Compute()
        if mesh is not None:
            return sharded.load(folder, compute, mesh, partial(cls, dtype=getattr(torch, compute.dtype)))
        return cls(load_model(folder, compute), getattr(torch, compute.dtype))

    @property
    def device(self) -> torch.device:
        return self.head.weight.device

    @torch.no_grad()
    def values(self, batch: MicroBatch) -> Tensor:
        """(N,) values of the states before the batch's response tokens, in the batch's order, on the device."""
        return self(batch)

    def forward(self, batch: MicroBatch) -> Tensor:
        """As `values`, with their gradient."""
        hidden_NH = hidden_states(self.body, batch, self._dtype).float()
        values_N: Tensor = self.head(hidden_NH).squeeze(-1)
        return values_N

    def backward(self, batch: MicroBatch, loss: ValueLoss) -> Tensor:
        """Add the gradient of `loss` to the parameters' `grad`; returns its value, a scalar on the device."""
        total = loss(self(batch))
        total.backward()
        return total.detach()


# A step's advantages with a critic, and what the critic is trained towards. Pure.


@dataclass(frozen=True)
class Targets:
    """Of all response tokens of a step, sample after sample. Axis N."""

    old_N: Tensor  # values before the first update
    returns_N: Tensor
    weights_N: Tensor  # of the value loss; 0 for tokens that are not trained on


def advantages(
    values_N: Tensor,
    means_N: Tensor,
    rewards_B: Tensor,
    lengths_B: Tensor,
    recipe: Recipe,
    kl_N: Tensor | None = None,
    earned_N: Tensor | None = None,
) -> tuple[Tensor, Targets]:
    """(N,) float32 advantages of all response tokens, and the targets.

    `means_N`: weights that make each mini-batch's value loss a mean over its tokens; 0 for tokens that are left out,
    also of the whitening. `kl_N`: KL of each token, for one in the reward.
    `earned_N`: what single tokens earned of the rewards.
    """
    rewards_N = gae.token_rewards(rewards_B, lengths_B, kl_N, recipe.kl_coef, earned_N)
    found = gae.estimate(rewards_N, values_N, lengths_B, gamma=recipe.gamma, lam=recipe.gae_lambda)
    advantages_N = gae.whiten(found.advantages_N, means_N > 0) if recipe.whiten else found.advantages_N
    return advantages_N.float(), Targets(values_N, found.returns_N.float(), means_N)
