"""Losses and gradients against numbers frozen from TRL's own trainers (scripts/freeze_trl.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rhymed.core.algorithms import expand
from rhymed_workers.trainer.algorithms.advantages import Objectives, advantages
from rhymed_workers.trainer.algorithms.losses import token_losses, token_weights
from rhymed_workers.trainer.algorithms.tokens import Tokens
from rhymed_workers.trainer.policy.packing import Sequences, micro_batches
from rhymed_workers.trainer.policy.policy import Policy

FROZEN = json.loads((Path(__file__).parents[3] / "data" / "losses_trl.json").read_text())
CASES = range(len(FROZEN["cases"]))
LENGTHS = torch.tensor([len(response) for response in FROZEN["responses"]])


def frozen_policy(temperature: float) -> Policy:
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(**FROZEN["config"]))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.tensor(FROZEN["weights"][name]).view_as(parameter))
    return Policy(model, temperature)


def sequences() -> list[Sequences]:
    pairs = zip(FROZEN["prompts"], FROZEN["responses"], strict=True)
    return [Sequences(np.array(prompt), np.array(response)) for prompt, response in pairs]


def test_advantages_of_several_scorers_are_trls() -> None:
    frozen = FROZEN["decoupled"]
    rewards = torch.tensor([[torch.nan if one is None else one for one in row] for row in frozen["rewards"]])
    weights, groups = torch.tensor(frozen["weights"]), torch.tensor([0] * 4 + [1] * 4)
    sums = (rewards.nan_to_num(nan=0.0) * weights).sum(1)
    recipe = expand("gdpo", {})
    found = advantages(
        sums, groups, torch.ones(8, dtype=torch.int64), recipe, objectives=Objectives(rewards, weights)
    )
    assert found.tolist() == pytest.approx(frozen["advantages"], abs=1e-5)


@pytest.mark.parametrize("micro_tokens", [1, 30, 4096])  # one sample a time; some packed; all at once
@pytest.mark.parametrize("number", CASES)
def test_loss_and_gradients_are_those_of_trl(number: int, micro_tokens: int) -> None:
    frozen = FROZEN["cases"][number]
    case = frozen["case"]
    old_N, reference_N = torch.tensor(frozen["old"]), torch.tensor(frozen["reference"])
    engine_N = torch.tensor(frozen["engine"]) if case.get("correct") else old_N
    recipe = expand(case["algorithm"], case["settings"])
    rewards, groups = torch.tensor(FROZEN["rewards"]), torch.tensor([0] * 4 + [1] * 4)
    scaled = expand("grpo", {})  # what the frozen advantages are, whatever the loss
    advantages_N = advantages(rewards, groups, LENGTHS, scaled)
    weights_N = token_weights(LENGTHS, recipe.aggregation, longest=9)
    sample_N = torch.arange(8).repeat_interleave(LENGTHS)
    sums = {"clipped": 0.0, "entropy": 0.0, "kl": 0.0}

    def loss(logp_N: Tensor, entropy_N: Tensor, flat_N: Tensor) -> Tensor:
        inputs = (old_N, engine_N, advantages_N, sample_N)
        tokens = Tokens(logp_N, *(given[flat_N] for given in inputs), LENGTHS, reference_N[flat_N])
        found = token_losses(tokens, recipe)
        sums["clipped"] += float(found.clipped_N.sum())
        sums["entropy"] += float(entropy_N.detach().sum())
        sums["kl"] += 0.0 if found.kl_N is None else float(found.kl_N.sum())
        bonus = recipe.entropy_coef * entropy_N.sum() / len(sample_N)
        return (found.loss_N * weights_N[flat_N]).sum() - bonus

    whole = recipe.whole_sequences(updates=2)
    policy = frozen_policy(case["temperature"])
    batches = micro_batches(sequences(), range(8), micro_tokens)
    total = sum(policy.backward(batch, loss, whole_sequences=whole) for batch in batches)

    assert total == pytest.approx(frozen["loss"], abs=1e-5)
    tokens = int(LENGTHS.sum())
    if frozen["clipped"] is not None and case["trainer"] == "GRPO" and recipe.ratio == "token":
        assert sums["clipped"] / tokens == pytest.approx(frozen["clipped"], abs=1e-5)
    assert sums["entropy"] / tokens == pytest.approx(frozen["entropy"], rel=1e-5)
    if frozen["kl"] is not None:
        assert sums["kl"] / tokens == pytest.approx(frozen["kl"], rel=1e-4)
    compare_gradients(policy.model, frozen)


def compare_gradients(model: Any, frozen: dict[str, Any]) -> None:
    parameters = dict(model.named_parameters())
    assert parameters.keys() == frozen["gradients"].keys()
    norm = torch.stack([parameter.grad.norm() for parameter in parameters.values()]).norm()
    assert norm == pytest.approx(frozen["gradient_norm"], rel=1e-4)
    for name, expected in frozen["gradients"].items():
        gradient = parameters[name].grad
        sampled = gradient.flatten()[:: max(1, gradient.numel() // 12)]
        assert torch.allclose(sampled, torch.tensor(expected), atol=1e-5, rtol=1e-4), name


def test_advantages_are_those_of_trl() -> None:
    rewards, groups = torch.tensor(FROZEN["rewards"]), torch.tensor([0] * 4 + [1] * 4)
    found = advantages(rewards, groups, torch.ones(8, dtype=torch.long), expand("grpo", {}))
    assert torch.allclose(found, torch.tensor(FROZEN["cases"][0]["advantages"]), atol=1e-5)
