"""CISPO: the ratio is a weight with limits, so every token keeps a gradient (MiniMax-M1, arXiv 2506.13585)."""

from __future__ import annotations

from rhymed.algorithms import Recipe
from rhymed_workers.trainer.algorithms.tokens import Terms, Tokens, log_ratios


def cispo(given: Tokens, recipe: Recipe) -> Terms:
    ratio_N = log_ratios(given.logp_N, given.old_N).detach().exp()
    weight_N = ratio_N.clamp(recipe.cispo_min, recipe.cispo_max)
    return Terms(-weight_N * given.advantages_N * given.logp_N, weight_N != ratio_N)
