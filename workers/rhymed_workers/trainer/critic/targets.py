"""A step's advantages with a critic, and what the critic is trained towards. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rhymed.algorithms import Recipe
from rhymed_workers.trainer.algorithms import gae


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
    own_N: Tensor,
    kl_N: Tensor | None = None,
) -> tuple[Tensor, Targets]:
    """(N,) float32 advantages of all response tokens, and the targets.

    `means_N`: weights that make each mini-batch's value loss a mean over its tokens; 0 for tokens that are left out,
    also of the whitening. `own_N`: loss weights from the rewards. `kl_N`: KL of each token, for one in the reward.
    """
    every_N = torch.ones_like(values_N, dtype=torch.bool)
    rewards_N = gae.token_rewards(rewards_B, lengths_B, every_N, kl_N, recipe.kl_coef)
    found = gae.estimate(rewards_N, values_N, lengths_B, every_N, gamma=recipe.gamma, lam=recipe.gae_lambda)
    advantages_N = gae.whiten(found.advantages_N, means_N > 0) if recipe.whiten else found.advantages_N
    return advantages_N.float(), Targets(values_N, found.returns_N.float(), means_N * own_N)
