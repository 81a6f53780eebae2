"""SAPO: a smooth gate instead of a clip, with a slope of 1 at a ratio of 1 (arXiv 2511.20347)."""

from __future__ import annotations

import torch

from rhymed.algorithms import Recipe
from rhymed_workers.trainer.algorithms.tokens import Terms, Tokens, log_ratios


def sapo(given: Tokens, recipe: Recipe) -> Terms:
    advantages_N = given.advantages_N
    ratio_N = log_ratios(given.logp_N, given.old_N).exp()
    tau_N = torch.full_like(advantages_N, recipe.sapo_tau_neg).masked_fill(advantages_N > 0, recipe.sapo_tau_pos)
    gate_N = torch.sigmoid(tau_N * (ratio_N - 1)) * 4 / tau_N
    return Terms(-gate_N * advantages_N, torch.zeros_like(advantages_N, dtype=torch.bool))
