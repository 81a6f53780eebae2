"""Shaped rewards of samples, and from them the advantages of tokens. Pure.

group-mean: reward minus the mean of its group. leave-one-out: minus the mean of the group's other samples. return:
rewards of this and all later tokens, without a baseline. decoupled: GDPO (arXiv 2601.05242), each objective
normalised in its group, then their weighted sum over the batch, whose mean is 0. none: rewards are not trained on.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rhymed.core.algorithms import Recipe, Scale
from rhymed_workers.trainer.algorithms import gae
from rhymed_workers.trainer.algorithms.gae import sample_sums

STD_EPS = 1e-4


class Objectives(NamedTuple):
    """Axis K: the terms of the weighted sum that is the reward."""

    rewards_BK: Tensor  # before weighting; NaN: it does not apply to this sample
    weights_K: Tensor


def overlong_penalty(lengths_B: Tensor, recipe: Recipe, longest: int) -> Tensor:
    """(B,) float64, 0 or less: soft overlong punishment (DAPO, equation 13).

    0 up to `longest` - cache tokens, then falling linearly to -`overlong_penalty` at `longest`.
    """
    cache = recipe.overlong_cache * longest
    return -((lengths_B.double() - (longest - cache)) / cache).clamp(0, 1) * recipe.overlong_penalty


def advantages(
    rewards_B: Tensor,
    groups_B: Tensor,
    lengths_B: Tensor,
    recipe: Recipe,
    *,
    kept_B: Tensor | None = None,
    kl_N: Tensor | None = None,
    earned_N: Tensor | None = None,
    objectives: Objectives | None = None,
) -> Tensor:
    """(N,) float32 advantages of all response tokens.

    `groups_B` numbers the groups from 0. `kept_B`: False for samples that are left out of the loss: they count in
    their group's mean, not in the whitening. `kl_N`: KL of each token, for a KL term in the reward. `earned_N`:
    what single tokens earned of the rewards, for "return"; others take the sum. `objectives`: the terms of the
    rewards, for "decoupled"; None: the reward is the only one.
    """
    kept_N = (torch.ones_like(lengths_B, dtype=torch.bool) if kept_B is None else kept_B).repeat_interleave(lengths_B)
    if recipe.advantage == "none":
        return torch.zeros(len(kept_N))
    if recipe.advantage == "return":
        rewards_N = gae.token_rewards(rewards_B, lengths_B, kl_N, recipe.kl_coef, earned_N)
        found_N = gae.estimate(rewards_N, torch.zeros_like(rewards_N), lengths_B, gamma=recipe.gamma).advantages_N
    elif recipe.advantage == "decoupled":
        parts = Objectives(rewards_B[:, None], torch.ones(1)) if objectives is None else objectives
        found_N = decoupled(parts, groups_B).repeat_interleave(lengths_B)
    else:
        if kl_N is not None:
            rewards_B = rewards_B.double() - recipe.kl_coef * sample_sums(kl_N.double(), lengths_B)
        found_B = scaled(centred(rewards_B, groups_B), rewards_B, groups_B, recipe.advantage_scale)
        if recipe.advantage == "leave-one-out":
            found_B = found_B * leave_one_out(groups_B)
        found_N = found_B.repeat_interleave(lengths_B)
    if recipe.whiten:
        found_N = gae.whiten(found_N, kept_N)
    return found_N.float()


def decoupled(given: Objectives, groups_B: Tensor) -> Tensor:
    """(B,) float64. An objective without a number for a sample adds nothing to it, and is normalised without it."""
    sums_B = torch.zeros(len(groups_B), dtype=torch.float64)
    for rewards_B, weight in zip(given.rewards_BK.double().T, given.weights_K.tolist(), strict=True):
        known_B = ~rewards_B.isnan()
        rewards, groups = rewards_B[known_B], groups_B[known_B]
        sums_B[known_B] += weight * scaled(centred(rewards, groups), rewards, groups, "group")
    return scaled(sums_B, sums_B, groups_B, "batch")


def centred(rewards_B: Tensor, groups_B: Tensor) -> Tensor:
    """Float64 rewards minus the mean of their group.

    Groups may differ in size. A group of equal rewards, or of one sample, gives exactly 0: in floating point its mean
    may differ from its members, and a small divisor would amplify that.
    """
    rewards = rewards_B.double()
    _, means = group_means(rewards, groups_B)
    found = rewards - means[groups_B]
    high = torch.full_like(means, -torch.inf).scatter_reduce_(0, groups_B, rewards, "amax")
    low = torch.full_like(means, torch.inf).scatter_reduce_(0, groups_B, rewards, "amin")
    found[(high == low)[groups_B]] = 0.0
    return found


def leave_one_out(groups_B: Tensor) -> Tensor:
    """(B,) G / (G - 1): turns the distance to the group's mean into that to the mean of the others."""
    sizes, _ = group_means(torch.zeros(len(groups_B), dtype=torch.float64), groups_B)
    return (sizes / (sizes - 1).clamp(min=1))[groups_B]


def scaled(centred_B: Tensor, rewards_B: Tensor, groups_B: Tensor, scale: Scale) -> Tensor:
    """Divided by an unbiased standard deviation + 1e-4, or by the mean of the group.

    A mean of 0 or less gives 0: MaxRL (arXiv 2602.02710) is made for rewards that are not negative.
    """
    if scale == "none":
        return centred_B
    if scale == "batch":
        return centred_B / (rewards_B.double().std() + STD_EPS) if len(rewards_B) > 1 else centred_B
    sizes, means = group_means(rewards_B.double(), groups_B)
    if scale == "mean":
        return (centred_B / means[groups_B]).where(means[groups_B] > 0, 0.0)
    squares = torch.zeros_like(means).index_add_(0, groups_B, centred_B**2)
    std = (squares / (sizes - 1).clamp(min=1)).sqrt()
    return centred_B / (std[groups_B] + STD_EPS)


def group_means(rewards: Tensor, groups_B: Tensor) -> tuple[Tensor, Tensor]:
    """Size and mean of every group."""
    count = int(groups_B.max()) + 1 if len(groups_B) else 0
    none = torch.zeros(count, dtype=rewards.dtype)
    sizes = none.index_add(0, groups_B, torch.ones_like(rewards))
    return sizes, none.index_add(0, groups_B, rewards) / sizes.clamp(min=1)
