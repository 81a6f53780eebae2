"""The loss against numbers frozen from TRL (scripts/freeze_trl.py), and its edges."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rhymed_workers.trainer import grpo
from rhymed_workers.trainer.policy.packing import Sequences, micro_batches
from rhymed_workers.trainer.policy.policy import Policy

FROZEN = json.loads((Path(__file__).parents[2] / "data" / "grpo_trl.json").read_text())
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


@pytest.mark.parametrize("micro_tokens", [1, 30, 4096])  # one sample a time; some packed; all at once
@pytest.mark.parametrize("number", CASES)
def test_loss_and_gradients_are_those_of_trl(number: int, micro_tokens: int) -> None:
    frozen = FROZEN["cases"][number]
    case = frozen["case"]
    old_N, reference_N = torch.tensor(frozen["old"]), torch.tensor(frozen["reference"])
    engine_N = torch.tensor(frozen["engine"]) if case["correct"] else old_N
    rewards, groups = torch.tensor(FROZEN["rewards"]), torch.tensor([0] * 4 + [1] * 4)
    advantages_N = grpo.advantages(rewards, groups).repeat_interleave(LENGTHS)
    weights_N = grpo.token_weights(LENGTHS, "sequence" if case["loss_type"] == "grpo" else "token")
    objective = grpo.Objective(kl_coef=case["beta"], tis_cap=FROZEN["cap"])
    sums = {"clipped": 0.0, "entropy": 0.0, "kl": 0.0}

    def loss(logp_N: Tensor, entropy_N: Tensor, flat_N: Tensor) -> Tensor:
        found = grpo.terms(
            logp_N, old_N[flat_N], engine_N[flat_N], advantages_N[flat_N], objective, reference_N[flat_N]
        )
        sums["clipped"] += float(found.clipped_N.sum())
        sums["entropy"] += float(entropy_N.sum())
        sums["kl"] += 0.0 if found.kl_N is None else float(found.kl_N.sum())
        return (found.loss_N * weights_N[flat_N]).sum()

    policy = frozen_policy(case["temperature"])
    total = sum(policy.backward(batch, loss) for batch in micro_batches(sequences(), range(8), micro_tokens))

    assert total == pytest.approx(frozen["loss"], abs=1e-5)
    tokens = int(LENGTHS.sum())
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
        sampled = gradient.flatten()[:: max(1, gradient.numel() // 40)]
        assert torch.allclose(sampled, torch.tensor(expected), atol=1e-5, rtol=1e-4), name


def test_advantages_are_those_of_trl() -> None:
    found = grpo.advantages(torch.tensor(FROZEN["rewards"]), torch.tensor([0] * 4 + [1] * 4))
    assert torch.allclose(found, torch.tensor(FROZEN["cases"][0]["advantages"]), atol=1e-5)


def test_equal_rewards_give_exactly_nothing() -> None:
    rewards = torch.tensor([0.1, 0.1, 0.1, 1.0, 0.0])
    for normalise in (True, False):
        found = grpo.advantages(rewards, torch.tensor([0, 0, 0, 1, 1]), std_normalise=normalise)
        assert found[:3].tolist() == [0, 0, 0]
        assert found[3] == -found[4] > 0


def test_a_group_of_one_gives_nothing() -> None:
    assert grpo.advantages(torch.tensor([3.0]), torch.tensor([0])).tolist() == [0]


def test_without_division_the_scale_of_rewards_stays() -> None:
    found = grpo.advantages(torch.tensor([0.0, 4.0]), torch.tensor([0, 0]), std_normalise=False)
    assert found.tolist() == [-2, 2]


@given(st.lists(st.lists(st.floats(-5, 5, width=32), min_size=1, max_size=6), min_size=1, max_size=5))
def test_advantages_of_a_group_sum_to_nothing_and_do_not_know_other_groups(groups: list[list[float]]) -> None:
    rewards = torch.tensor([reward for group in groups for reward in group])
    numbers = torch.tensor([number for number, group in enumerate(groups) for _ in group])
    found = grpo.advantages(rewards, numbers)
    assert torch.isfinite(found).all()
    for number, group in enumerate(groups):
        mine = found[numbers == number]
        assert mine.sum().abs() < 1e-3
        assert torch.equal(mine, grpo.advantages(torch.tensor(group), torch.zeros(len(group), dtype=torch.long)))


def test_weights_sum_to_one() -> None:
    lengths = torch.tensor([3, 1, 0, 4])
    assert grpo.token_weights(lengths, "token").tolist() == [0.125] * 8
    weights = grpo.token_weights(lengths, "sequence")
    assert weights.sum() == pytest.approx(3 / 4)  # the empty response counts as a sample, with nothing to say
    assert weights[3] == pytest.approx(1 / 4)


def test_engine_weights_are_truncated_from_above_only_and_ignore_what_is_unknown() -> None:
    old = torch.tensor([0.0, 0.0, 0.0, -1.0])
    engine = torch.tensor([0.0, -5.0, torch.nan, 9.0])
    found = grpo.engine_weights(old, engine, 2.0)
    assert found.tolist() == pytest.approx([1.0, 2.0, 1.0, np.exp(-10)])


def test_beyond_the_clip_there_is_no_gradient() -> None:
    logp = torch.tensor([0.3, -0.3, 0.3, -0.3], requires_grad=True)
    old, advantage = torch.zeros(4), torch.tensor([1.0, -1.0, -1.0, 1.0])
    found = grpo.terms(logp, old, old, advantage, grpo.Objective(0.2, 0.28))
    found.loss_N.sum().backward()
    assert found.clipped_N.tolist() == [True, True, False, False]
    assert logp.grad is not None
    assert (logp.grad == 0).tolist() == [True, True, False, False]
