"""Every loss by its name in `trainer.loss`, and how a recipe's parts make one loss of a token.

A loss is a pure function of `Tokens` and the recipe. To add one: a file next to this, a name in
`rhymed.algorithms.recipe.Loss`, an entry here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from rhymed.algorithms import Recipe
from rhymed_workers.trainer.algorithms.cispo import cispo
from rhymed_workers.trainer.algorithms.clip import clip
from rhymed_workers.trainer.algorithms.correction import correction
from rhymed_workers.trainer.algorithms.dppo import dppo
from rhymed_workers.trainer.algorithms.gmpo import gmpo
from rhymed_workers.trainer.algorithms.kl import kl_loss
from rhymed_workers.trainer.algorithms.sapo import sapo
from rhymed_workers.trainer.algorithms.tokens import Terms, Tokens


def likelihood(given: Tokens, recipe: Recipe) -> Terms:
    """Negative log-likelihood: of answers that are right, whatever their reward."""
    return Terms(-given.logp_N, torch.zeros_like(given.logp_N, dtype=torch.bool))


LOSSES: dict[str, Callable[[Tokens, Recipe], Terms]] = {
    "clip": clip,
    "cispo": cispo,
    "gmpo": gmpo,
    "sapo": sapo,
    "dppo": dppo,
    "likelihood": likelihood,
}


class TokenLosses(NamedTuple):
    """Per token, before weighting."""

    loss_N: Tensor  # carries the gradient
    clipped_N: Tensor  # bool: the loss removed or limited the gradient
    rejected_N: Tensor | None  # bool: left out by the correction; None: it leaves none out
    kl_N: Tensor | None  # to the reference; None if it is no part of the loss


def token_losses(given: Tokens, recipe: Recipe) -> TokenLosses:
    """The correction weights the policy's loss, not the KL term. Needs whole samples where the recipe says so."""
    loss_N, clipped_N = LOSSES[recipe.loss](given, recipe)
    weights_N, rejected_N = correction(given, recipe), None
    if weights_N is not None:
        loss_N = loss_N * weights_N
        rejected_N = weights_N == 0 if recipe.rejects else None
    if not recipe.kl_coef or recipe.kl_in == "reward":
        return TokenLosses(loss_N, clipped_N, rejected_N, None)
    assert given.reference_N is not None, "a KL term needs the reference model"
    kl_N = kl_loss(given.logp_N, given.old_N, given.reference_N, recipe.kl_estimator)
    return TokenLosses(loss_N + recipe.kl_coef * kl_N, clipped_N, rejected_N, kl_N.detach())
