"""DPPO: tokens whose probability has moved too far from the engine's are left out (arXiv 2602.04879).

With a term that pulls towards the engine's policy, as prime-rl's default loss has it. The ratio is the one to the
engine's probabilities, so it corrects for them as well.
"""

from __future__ import annotations

import torch

from rhymed.algorithms import Recipe
from rhymed_workers.trainer.algorithms.tokens import Terms, Tokens, log_ratios


def dppo(given: Tokens, recipe: Recipe) -> Terms:
    """A token whose engine log-prob is not known is compared with the trainer's before the update."""
    engine_N = given.engine_N.where(given.engine_N.isfinite(), given.old_N)
    log_N, advantages_N = log_ratios(given.logp_N, engine_N), given.advantages_N
    moved_N = given.logp_N.detach().exp() - engine_N.exp()
    left_out_N = torch.where(advantages_N > 0, moved_N > recipe.dppo_mask_high, moved_N < -recipe.dppo_mask_low)
    gain_N = (log_N.exp() * advantages_N).masked_fill(left_out_N, 0.0)
    return Terms(recipe.dppo_kl_tau * log_N**2 - gain_N, left_out_N & (advantages_N != 0))
