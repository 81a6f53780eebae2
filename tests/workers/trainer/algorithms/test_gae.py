"""Advantages and the value loss: against verl (scripts/freeze_verl_gae.py), the definition, and at their edges."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rhymed_workers.trainer.algorithms import gae

FROZEN = json.loads((Path(__file__).parents[3] / "data" / "gae_verl.json").read_text())
LENGTHS = torch.tensor(FROZEN["lengths"])
"""Of the responses with tokens of environments, which a mask leaves out."""


def doubles(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.fixture(params=FROZEN["cases"], ids=str)
def case(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = request.param
    return found


def test_advantages_and_returns_are_those_of_verl(case: dict[str, Any]) -> None:
    """verl passes masked tokens by; here only the policy's are on the axis."""
    mask_N = torch.tensor(case["mask"])
    lengths_B = torch.stack([part.sum() for part in mask_N.split(LENGTHS.tolist())])
    values_N, kl_N, advantages_N, returns_N = (
        doubles(case[name])[mask_N] for name in ("values", "kl", "advantages", "returns")
    )
    rewards_N = gae.token_rewards(doubles(case["scores"]), lengths_B, kl_N, FROZEN["kl_coef"])
    found = gae.estimate(rewards_N, values_N, lengths_B, gamma=case["gamma"], lam=case["lam"])
    white_N = gae.whiten(found.advantages_N, torch.ones_like(kl_N, dtype=torch.bool))
    assert torch.allclose(white_N, advantages_N, atol=1e-7)
    assert torch.allclose(found.returns_N, returns_N, atol=1e-12)


def test_the_value_loss_and_its_gradient_are_those_of_verl(case: dict[str, Any]) -> None:
    mask_N, new_N = torch.tensor(case["mask"]), doubles(case["new"]).requires_grad_()
    found = gae.value_terms(new_N, doubles(case["values"]), doubles(case["returns"]), case["clip"])
    loss = found.loss_N[mask_N].mean()
    loss.backward()
    assert loss.item() == pytest.approx(case["loss"], rel=1e-7)
    assert torch.allclose(new_N.grad, doubles(case["gradient"]), atol=1e-8)
    assert float(found.clipped_N[mask_N].double().mean()) == pytest.approx(case["clipped"], abs=1e-6)


@st.composite
def batches(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor]:
    """Lengths, rewards, values."""
    lengths = draw(st.lists(st.integers(0, 7), min_size=1, max_size=4))
    rewards, values = (
        draw(st.lists(st.floats(-3, 3), min_size=sum(lengths), max_size=sum(lengths))) for _ in range(2)
    )
    return torch.tensor(lengths), doubles(rewards), doubles(values)


@given(batches(), st.floats(0, 1), st.floats(0, 1))
def test_advantages_are_sums_of_discounted_differences(batch: tuple[Tensor, ...], gamma: float, lam: float) -> None:
    lengths_B, rewards_N, values_N = batch
    found = gae.estimate(rewards_N, values_N, lengths_B, gamma=gamma, lam=lam)
    expected: list[float] = []
    for rewards, values in zip(rewards_N.split(lengths_B.tolist()), values_N.split(lengths_B.tolist()), strict=True):
        following = torch.cat([values[1:], torch.zeros(min(1, len(values)), dtype=torch.float64)])
        delta = (rewards + gamma * following - values).tolist()
        expected += [
            sum((gamma * lam) ** (k - t) * delta[k] for k in range(t, len(delta))) for t in range(len(delta))
        ]
    assert torch.allclose(found.advantages_N, doubles(expected), atol=1e-9)


def test_without_values_advantages_are_the_rewards_to_go() -> None:
    lengths_B = torch.tensor([3, 1])
    rewards_N = gae.token_rewards(doubles([1.0, -2.0]), lengths_B)
    assert rewards_N.tolist() == [0, 0, 1, -2]
    found = gae.estimate(rewards_N, torch.zeros(4), lengths_B, gamma=0.5)
    assert found.advantages_N.tolist() == found.returns_N.tolist() == [0.25, 0.5, 1, -2]


def test_the_divergence_is_a_cost_of_every_token() -> None:
    found = gae.token_rewards(doubles([1.0, 7.0]), torch.tensor([2, 0]), doubles([0.5, -1.0]), 0.1)
    assert torch.allclose(found, doubles([-0.05, 1.1]))  # nothing for a sample without tokens


def test_a_perfect_critic_leaves_no_advantage() -> None:
    lengths_B = torch.tensor([4])
    rewards_N = gae.token_rewards(doubles([2.0]), lengths_B)
    found = gae.estimate(rewards_N, torch.full((4,), 2.0), lengths_B, lam=0.3)
    assert found.advantages_N.tolist() == [0, 0, 0, 0]
    assert found.returns_N.tolist() == [2, 2, 2, 2]


@given(st.lists(st.tuples(st.floats(-100, 100), st.booleans()), max_size=20))
def test_whitened_tokens_have_mean_0_and_variance_1(pairs: list[tuple[float, bool]]) -> None:
    given_N, mask_N = doubles([value for value, _ in pairs]), torch.tensor([on for _, on in pairs], dtype=torch.bool)
    found = gae.whiten(given_N, mask_N)
    assert (found[~mask_N] == 0).all()
    if int(mask_N.sum()) < 2:
        assert (found == 0).all()
    else:
        assert float(found[mask_N].mean()) == pytest.approx(0, abs=1e-6)
        spread = float(given_N[mask_N].var())
        assert float(found[mask_N].var()) == pytest.approx(spread / (spread + gae.VARIANCE_EPS), abs=1e-6)


@pytest.mark.parametrize("clip", [None, 0.2])
def test_the_value_loss_has_the_gradient_of_finite_differences(clip: float | None) -> None:
    generator = torch.Generator().manual_seed(3)
    new_N, old_N, returns_N = torch.randn((3, 20), generator=generator, dtype=torch.float64)
    weights_N = torch.rand(20, generator=generator, dtype=torch.float64)

    def loss(values_N: Tensor) -> Tensor:
        return (gae.value_terms(values_N, old_N, returns_N, clip).loss_N * weights_N).sum()

    assert torch.autograd.gradcheck(loss, (new_N.requires_grad_(),))


def test_a_clipped_value_has_no_gradient() -> None:
    new_N, old_N = doubles([1.0, -1.0]).requires_grad_(), doubles([0.0, 0.0])
    found = gae.value_terms(new_N, old_N, doubles([2.0, 2.0]), 0.5)
    found.loss_N.sum().backward()
    assert found.clipped_N.tolist() == [True, False]  # the second moved away: its own loss is the larger one
    assert found.loss_N.tolist() == [0.5 * 1.5**2, 0.5 * 3**2]
    assert new_N.grad.tolist() == [0, -3]


def test_explained_variance_judges_a_critic() -> None:
    returns_N, mask_N = doubles([0.0, 1.0, 2.0, 9.0]), torch.tensor([True, True, True, False])
    assert gae.explained_variance(returns_N, returns_N, mask_N) == 1
    assert gae.explained_variance(returns_N + 5, returns_N, mask_N) == 1  # a shift is no variance
    assert gae.explained_variance(torch.zeros(4), returns_N, mask_N) == 0
    assert gae.explained_variance(-returns_N, returns_N, mask_N) == -3
    assert gae.explained_variance(returns_N, torch.ones(4), mask_N) is None
    assert gae.explained_variance(returns_N, returns_N, mask_N & False) is None
