"""The GRPO loss and its variants, as pure functions over flat tokens (axis N: response tokens, sample after sample).

The loss is a weighted sum over tokens: normalisation is in the weights, so micro-batches of any size add up to the
same gradient, and a token of weight 0 is masked. Knows neither models nor batches. Definitions follow TRL 1.16
(`GRPOTrainer._compute_loss`, loss types "dapo"/"bnpo" for norm "token", "grpo" for norm "sequence"); left out: the
second clip (delta), entropy masks, sequence-level ratios, batch-wide reward scaling.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

STD_EPS = 1e-4


@dataclass(frozen=True)
class Objective:
    clip_eps_low: float = 0.2
    clip_eps_high: float = 0.28
    kl_coef: float = 0.0
    tis_cap: float | None = 2.0  # None: engine and trainer are not compared


class Terms(NamedTuple):
    """Per token, before weighting."""

    loss_N: Tensor  # carries the gradient
    clipped_N: Tensor  # bool: the clip removed the gradient
    kl_N: Tensor | None  # k3 estimate against the reference; None without one


def advantages(rewards_B: Tensor, groups_B: Tensor, *, std_normalise: bool = True) -> Tensor:
    """Reward minus the mean of its group, divided by the group's unbiased standard deviation (+ 1e-4).

    `groups_B` numbers the groups from 0; they may differ in size. A group of equal rewards, or of one sample, gives
    exactly 0: in floating point its mean may differ from its members, and the small divisor would amplify that.
    """
    rewards = rewards_B.double()
    count = int(groups_B.max()) + 1 if len(groups_B) else 0
    ones = torch.ones_like(rewards)
    sizes = torch.zeros(count, dtype=rewards.dtype).index_add_(0, groups_B, ones)
    means = torch.zeros(count, dtype=rewards.dtype).index_add_(0, groups_B, rewards) / sizes.clamp(min=1)
    centred = rewards - means[groups_B]
    high = torch.full((count,), -torch.inf, dtype=rewards.dtype).scatter_reduce_(0, groups_B, rewards, "amax")
    low = torch.full((count,), torch.inf, dtype=rewards.dtype).scatter_reduce_(0, groups_B, rewards, "amin")
    centred[(high == low)[groups_B]] = 0.0
    if std_normalise:
        squares = torch.zeros(count, dtype=rewards.dtype).index_add_(0, groups_B, centred**2)
        std = (squares / (sizes - 1).clamp(min=1)).sqrt()
        centred = centred / (std[groups_B] + STD_EPS)
    return centred.float()


def token_weights(lengths_B: Tensor, norm: Literal["token", "sequence"]) -> Tensor:
    """Weight of every token of B samples, so that a weighted sum is the mean over tokens, or the mean of the samples'
    means.
    """
    if norm == "token":
        total = int(lengths_B.sum())
        return torch.full((total,), 1.0 / max(1, total))
    return (1.0 / (len(lengths_B) * lengths_B.clamp(min=1).float())).repeat_interleave(lengths_B)


def engine_weights(old_N: Tensor, engine_N: Tensor, cap: float) -> Tensor:
    """Truncated importance weights between the trainer's and the engine's policy of the same version.

    Corrects for the engine's probabilities, which differ slightly from the trainer's. An engine log-prob that is not
    a number counts as equal.
    """
    return torch.nan_to_num(old_N - engine_N, nan=0.0).exp().clamp(max=cap)


def k3(logp_N: Tensor, other_N: Tensor) -> Tensor:
    """Schulman's estimate of KL(p || other) from samples of p: not negative, low variance."""
    difference = other_N - logp_N
    return difference.expm1() - difference  # expm1: exact for close policies


def terms(
    logp_N: Tensor,
    old_N: Tensor,
    engine_N: Tensor,
    advantages_N: Tensor,
    objective: Objective,
    reference_N: Tensor | None = None,
) -> Terms:
    """Clipped policy-gradient loss of each token. Only `logp_N` carries a gradient.

    logp: the policy that is trained; old: the trainer's policy before this step's first update; engine: log-probs
    that the engine computed while sampling; reference: for the KL term, needed if `kl_coef` is not 0. The KL term is
    weighted by the ratio, so that its gradient is the unbiased one of the reverse KL (DeepSeek-V3.2, arXiv
    2512.02556; TRL's default).
    """
    low, high = 1 - objective.clip_eps_low, 1 + objective.clip_eps_high
    ratio_N = (logp_N - old_N).exp()
    clipped_N = ((ratio_N < low) & (advantages_N < 0)) | ((ratio_N > high) & (advantages_N > 0))
    gain_N = torch.min(ratio_N * advantages_N, ratio_N.clamp(low, high) * advantages_N)
    loss_N = -gain_N
    if objective.tis_cap is not None:
        loss_N = loss_N * engine_weights(old_N, engine_N, objective.tis_cap)
    if objective.kl_coef == 0 or reference_N is None:
        return Terms(loss_N, clipped_N, None)
    kl_N = ratio_N * k3(logp_N, reference_N)
    return Terms(loss_N + objective.kl_coef * kl_N, clipped_N, kl_N.detach())
