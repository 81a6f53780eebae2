"""GMPO: the geometric mean of the tokens' ratios, each clipped before, in log space (arXiv 2507.20673)."""

from __future__ import annotations

import torch

from rhymed.algorithms import Recipe
from rhymed_workers.trainer.algorithms.tokens import Terms, Tokens, log_ratios


def gmpo(given: Tokens, recipe: Recipe) -> Terms:
    """Needs whole samples once the policy was updated.

    As with a sequence's ratio, each token has the value of the sequence and its own part of the gradient.
    """
    log_N, advantages_N = log_ratios(given.logp_N, given.old_N), given.advantages_N
    limited_N = log_N.clamp(-recipe.clip_eps_low, recipe.clip_eps_high)
    chosen_N = torch.where(advantages_N > 0, torch.min(log_N, limited_N), torch.max(log_N, limited_N))
    fixed_N = chosen_N.detach()
    whole_N = given.sample_means(fixed_N) if given.updated else fixed_N
    return Terms(-(whole_N + chosen_N - fixed_N).exp() * advantages_N, fixed_N != log_N.detach())
