"""Rewards, advantages and returns of single tokens, and the loss of the values that a critic gives them.

Pure functions over flat tokens (axis N: tokens that the policy wrote, sample after sample, as many as `lengths_B`
says). Definitions: Schulman et al. 2016 (arXiv 1506.02438), equation 16, and verl 0.9.1 (`core_algos`:
`compute_gae_advantage_return`, `compute_value_loss`; `torch_functional.masked_whiten`). Left out: a value after the
last token, so a response that was cut at its limit ends like any other. Knows neither models nor batches.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rhymed_workers.trainer.algorithms.tokens import Terms

VARIANCE_EPS = 1e-8


class Estimates(NamedTuple):
    """Float64."""

    advantages_N: Tensor
    returns_N: Tensor  # what the value should have been: advantage + value


def token_rewards(
    scores_B: Tensor,
    lengths_B: Tensor,
    kl_N: Tensor | None = None,
    kl_coef: float = 0.0,
    earned_N: Tensor | None = None,
) -> Tensor:
    """(N,) float64: each sample's score at its last token, and -kl_coef * kl at every token.

    `kl_N`: an estimate of the KL divergence to the reference at each token. `earned_N`: the parts of the scores that
    were earned at known tokens; the last token has the rest. A sample without a token has no reward.
    """
    rewards_N = torch.zeros(int(lengths_B.sum()), dtype=torch.float64)
    if earned_N is not None:
        rewards_N += earned_N
        scores_B = scores_B.double() - sample_sums(earned_N.double(), lengths_B)
    if kl_N is not None:
        rewards_N -= kl_coef * kl_N.double()
    for score, (start, end) in zip(scores_B.tolist(), _spans(lengths_B), strict=True):
        if start < end:
            rewards_N[end - 1] += score
    return rewards_N


def estimate(
    rewards_N: Tensor, values_N: Tensor, lengths_B: Tensor, *, gamma: float = 1.0, lam: float = 1.0
) -> Estimates:
    """Generalised advantage estimates and returns, before whitening.

    `values_N`: value of the state before each token. With values of 0 and `lam` = 1 the advantages are the discounted
    rewards to go. Sums are made in float64, from the last token to the first.
    """
    values_N, found = values_N.double(), list[float]()
    rewards, values = rewards_N.tolist(), values_N.tolist()
    for start, end in reversed(_spans(lengths_B)):
        advantage, following = 0.0, 0.0
        for reward, value in zip(reversed(rewards[start:end]), reversed(values[start:end]), strict=True):
            advantage = reward + gamma * following - value + gamma * lam * advantage
            following = value
            found.append(advantage)
    advantages_N = torch.tensor(found[::-1], dtype=torch.float64)
    return Estimates(advantages_N, advantages_N + values_N)


def whiten(given_N: Tensor, mask_N: Tensor) -> Tensor:
    """Shifted and scaled to mean 0 and (unbiased) variance 1 over the unmasked tokens; 0 elsewhere.

    Fewer than two unmasked tokens have no variance: they become 0.
    """
    count = int(mask_N.sum())
    if count < 2:
        return torch.zeros_like(given_N)
    variance, mean = torch.var_mean(given_N[mask_N])
    return ((given_N - mean) * (variance + VARIANCE_EPS).rsqrt()).where(mask_N, 0.0)


def value_terms(values_N: Tensor, old_N: Tensor, returns_N: Tensor, clip: float | None) -> Terms:
    """Half the squared distance of each value from its return; only `values_N` carries a gradient.

    old: the values before this step's first update. `clip`: a value that has moved further than this from its old one
    is replaced by the limit where that is the larger loss; None: no clipping.
    """
    square_N = (values_N - returns_N) ** 2
    if clip is None:
        return Terms(0.5 * square_N, torch.zeros_like(square_N, dtype=torch.bool))
    limited_N = (values_N.clamp(old_N - clip, old_N + clip) - returns_N) ** 2
    return Terms(0.5 * torch.max(square_N, limited_N), limited_N > square_N)


def explained_variance(values_N: Tensor, returns_N: Tensor, mask_N: Tensor) -> float | None:
    """1 - var(returns - values) / var(returns) over the unmasked tokens: 1 for a perfect critic, 0 for a constant,
    below 0 for worse. None where the returns do not vary.
    """
    if int(mask_N.sum()) < 2:
        return None
    returns_N, values_N = returns_N[mask_N].double(), values_N[mask_N].double()
    spread = float(returns_N.var())
    return 1.0 - float((returns_N - values_N).var()) / spread if spread > VARIANCE_EPS else None


def sample_sums(given_N: Tensor, lengths_B: Tensor) -> Tensor:
    """(B,) sums over each sample's tokens."""
    sample_N = torch.arange(len(lengths_B)).repeat_interleave(lengths_B)
    return torch.zeros(len(lengths_B), dtype=given_N.dtype).index_add_(0, sample_N, given_N)


def _spans(lengths_B: Tensor) -> list[tuple[int, int]]:
    """Where each sample's tokens begin and end."""
    ends = torch.cumsum(lengths_B, 0)
    return list(zip((ends - lengths_B).tolist(), ends.tolist(), strict=True))
