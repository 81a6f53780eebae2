"""Weights of tokens against the difference between the engine's and the trainer's policy of the same version.

The engine's probabilities differ slightly from the trainer's: other kernels, other precision. An engine log-prob that
is not a number counts as equal. Ratios are old / engine, without gradient.

* token-tis: the token's ratio, at most a cap (Yao et al. 2025).
* sequence-mask: the product of the sample's ratios, 0 if it is above a cap (TRL's default).
* icepop: the token's ratio, 0 outside a band (Ring-1T, arXiv 2510.18855).
* geometric: 1, or 0 if the geometric mean of the sample's ratios is outside a band (verl's rejection).
* off-policy mask: 0 for samples with negative advantage whose policy has moved away from the engine's (DeepSeek-V3.2,
  arXiv 2512.02556).
"""

from __future__ import annotations

import torch
from torch import Tensor

from rhymed.algorithms import Recipe
from rhymed_workers.trainer.algorithms.tokens import MAX_LOG, Tokens


def correction(given: Tokens, recipe: Recipe) -> Tensor | None:
    """(N,) weights; None: all are 1. Those of sequences and the off-policy mask need whole samples."""
    weights_N = _weights(given, recipe)
    if recipe.off_policy_mask:
        kept_N = off_policy_kept(given, recipe.off_policy_mask)
        return kept_N.to(given.old_N.dtype) if weights_N is None else weights_N * kept_N
    return weights_N


def _weights(given: Tokens, recipe: Recipe) -> Tensor | None:
    kind = recipe.correction
    if kind == "none":
        return None
    log_N = torch.nan_to_num(given.old_N - given.engine_N, nan=0.0)
    if kind == "token-tis":
        return log_N.exp().clamp(max=recipe.tis_cap)
    if kind == "icepop":
        return _within(log_N.exp(), recipe.icepop_min, recipe.icepop_max)
    if kind == "sequence-mask":
        return _within(given.sample_sums(log_N).clamp(max=MAX_LOG).exp(), 0.0, recipe.sequence_mask_cap)
    mean_N = given.sample_means(log_N).exp()
    return ((mean_N >= recipe.geometric_min) & (mean_N <= recipe.geometric_max)).to(log_N.dtype)


def _within(ratio_N: Tensor, low: float, high: float) -> Tensor:
    return ratio_N.masked_fill((ratio_N < low) | (ratio_N > high), 0.0)


def off_policy_kept(given: Tokens, limit: float) -> Tensor:
    """(N,) bool: the advantage is not negative, or the sample's mean of log(engine / policy) is at most the limit."""
    moved_N = torch.nan_to_num(given.engine_N - given.logp_N.detach(), nan=0.0)
    return (given.advantages_N >= 0) | (given.sample_means(moved_N) <= limit)
