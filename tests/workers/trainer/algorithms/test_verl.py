"""Losses, aggregations and advantages against numbers frozen from verl (scripts/freeze_verl_losses.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rhymed.core.algorithms import expand
from rhymed_workers.trainer.algorithms.advantages import advantages
from rhymed_workers.trainer.algorithms.losses import token_losses, token_weights
from rhymed_workers.trainer.algorithms.tokens import Tokens

FROZEN = json.loads((Path(__file__).parents[3] / "data" / "losses_verl.json").read_text())
LENGTHS = torch.tensor(FROZEN["lengths"])
SAMPLES = torch.arange(len(LENGTHS)).repeat_interleave(LENGTHS)


def doubles(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("frozen", FROZEN["losses"], ids=lambda frozen: str(frozen["case"]))
def test_values_and_gradients_are_those_of_verl(frozen: dict[str, Any]) -> None:
    recipe = expand(frozen["case"]["algorithm"], frozen["case"]["settings"])
    logp_N = doubles(frozen["logp"]).requires_grad_()
    parts = [doubles(frozen[name]) for name in ("old", "engine", "advantages")]
    found = token_losses(Tokens(logp_N, *parts, SAMPLES, LENGTHS), recipe)
    weights_N = token_weights(LENGTHS, recipe.aggregation, longest=FROZEN["longest"])
    total = (found.loss_N * weights_N).sum()
    (gradient,) = torch.autograd.grad(total, logp_N)
    if frozen["value"] is not None:
        assert total.item() == pytest.approx(frozen["value"], rel=1e-6)
    assert torch.allclose(gradient, doubles(frozen["gradient"]), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("frozen", FROZEN["advantages"], ids=lambda frozen: frozen["case"]["algorithm"])
def test_advantages_are_those_of_verl(frozen: dict[str, Any]) -> None:
    case = frozen["case"]
    settings = {"gamma": case["given"]["gamma"]} if "gamma" in case["given"] else {}
    recipe, groups = expand(case["algorithm"], settings), torch.tensor(FROZEN["groups"])
    found = advantages(doubles(frozen["rewards"]), groups, LENGTHS, recipe)
    assert torch.allclose(found.double(), doubles(frozen["advantages"]), atol=1e-5)
