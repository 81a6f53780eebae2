"""PPO's clipped loss, with ratios of tokens or of sequences.

Schulman et al. 2017 (arXiv 1707.06347). Upper clip of its own: DAPO (arXiv 2503.14476). Limit for negative
advantages: dual clip (arXiv 1912.09729). Ratio of the sequence: GSPO (arXiv 2507.18071) and TRL's `RLOOTrainer`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rhymed.algorithms import Recipe
from rhymed.algorithms.recipe import Ratio
from rhymed_workers.trainer.algorithms.tokens import MAX_LOG, Terms, Tokens, log_ratios


def clip(given: Tokens, recipe: Recipe) -> Terms:
    low, high = 1 - recipe.clip_eps_low, 1 + recipe.clip_eps_high
    ratio_N, advantages_N = ratios(given, recipe.ratio), given.advantages_N
    clipped_N = ((ratio_N < low) & (advantages_N < 0)) | ((ratio_N > high) & (advantages_N > 0))
    gain_N = torch.min(ratio_N * advantages_N, ratio_N.clamp(low, high) * advantages_N)
    if recipe.dual_clip:
        least_N = recipe.dual_clip * advantages_N
        limited_N = (advantages_N < 0) & (gain_N < least_N)
        gain_N, clipped_N = gain_N.where(~limited_N, least_N), clipped_N | limited_N
    return Terms(-gain_N, clipped_N)


def ratios(given: Tokens, level: Ratio) -> Tensor:
    """(N,) importance ratios. Those of sequences need whole samples once the policy was updated.

    A sequence's ratio has the value of the whole sequence at each of its tokens, and each token's own part of the
    gradient, so that the mean over the tokens has the value and the gradient of the sequence's ratio: a token's
    advantage and weights stay its own (GSPO, section 4.3).
    """
    log_N = log_ratios(given.logp_N, given.old_N)
    if level == "token":
        return log_N.exp()
    own_N = log_N - log_N.detach()
    if not given.updated:
        whole_N = torch.zeros_like(own_N)  # samples may be incomplete
    elif level == "sequence":
        whole_N = given.sample_means(log_N.detach())
    else:
        whole_N = given.sample_sums(log_N.detach())
    if level == "sequence-product":
        own_N = own_N * given.lengths_N
    return (whole_N.clamp(-MAX_LOG, MAX_LOG) + own_N).exp()
