"""Values against their definitions and TRL's own function (frozen), gradients against autograd, in float64."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rhymed_workers.trainer.teacher.distillation import LEAST, forward, forward_topk, mixed, reverse, sampled_reverse

FROZEN: dict[str, Any] = json.loads((Path(__file__).parents[3] / "data" / "distillation_trl.json").read_text())
N, V = 6, 9


Divergence = Callable[[Tensor, Tensor], Tensor]


def of_beta(beta: float) -> Divergence:
    """TRL's names: 0 is the forward divergence, 1 the reverse one."""
    if beta in (0.0, 1.0):
        return reverse if beta else forward
    return lambda logp_NV, logq_NV: mixed(logp_NV, logq_NV, beta)


def logits(seed: int) -> Tensor:
    return 2 * torch.randn((N, V), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def slope(value: Tensor, leaf: Tensor) -> Tensor:
    return torch.autograd.grad(value, leaf)[0]


@pytest.mark.parametrize("case", FROZEN["cases"], ids=lambda case: f"{case['beta']}@{case['temperature']}")
def test_value_and_gradient_are_trls(case: dict[str, Any]) -> None:
    student, teacher = (torch.tensor(FROZEN[name], dtype=torch.float64) for name in ("student", "teacher"))
    leaf, temperature = student.requires_grad_(), case["temperature"]
    found = of_beta(case["beta"])((leaf / temperature).log_softmax(-1), (teacher / temperature).log_softmax(-1)).sum()
    assert found.item() == pytest.approx(case["loss"], rel=1e-12)
    expected = torch.tensor(case["gradient"], dtype=torch.float64)
    assert torch.allclose(slope(found, leaf), expected, rtol=0, atol=1e-12)


def test_gradients_by_the_logits_are_their_closed_forms() -> None:
    leaf, logq = logits(1).requires_grad_(), logits(2).log_softmax(-1)
    logp, q = leaf.log_softmax(-1), logq.exp()
    p = logp.detach().exp()
    forwards = slope(forward(logp, logq).sum(), leaf)
    assert torch.allclose(forwards, p - q, atol=1e-12)
    leaf.grad = None
    logp = leaf.log_softmax(-1)
    values = reverse(logp, logq)
    expected = p * (logp.detach() - logq - values.detach()[:, None])
    assert torch.allclose(slope(values.sum(), leaf), expected, atol=1e-12)


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_the_gradient_is_that_of_finite_differences(beta: float) -> None:
    logq = logits(2).log_softmax(-1)
    assert torch.autograd.gradcheck(
        lambda leaf: of_beta(beta)(leaf.log_softmax(-1), logq), (logits(1).requires_grad_(),), atol=1e-8
    )


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_equal_distributions_have_neither_value_nor_gradient(beta: float) -> None:
    leaf = logits(1).requires_grad_()
    found = of_beta(beta)(leaf.log_softmax(-1), leaf.detach().log_softmax(-1))
    assert found.abs().max() < 1e-14
    assert slope(found.sum(), leaf).abs().max() < 1e-14


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_it_is_never_negative(beta: float) -> None:
    assert of_beta(beta)(logits(1).log_softmax(-1), logits(2).log_softmax(-1)).min() > 0


def test_tokens_of_hardly_any_probability_do_no_harm() -> None:
    leaf = torch.tensor([[0.0, -1000.0, -2000.0]]).requires_grad_()
    logq = torch.tensor([[-1500.0, 0.0, 0.0]]).log_softmax(-1)
    for beta in (0.0, 0.3, 1.0):
        found = of_beta(beta)(leaf.log_softmax(-1), logq)
        assert torch.isfinite(found).all()
        assert torch.isfinite(slope(found.sum(), leaf)).all()


def test_topk_with_the_whole_vocabulary_is_the_forward_divergence() -> None:
    leaf, logq = logits(1).requires_grad_(), logits(2).log_softmax(-1)
    best = logq.topk(V, dim=-1)
    found, whole = forward_topk(leaf.log_softmax(-1), best.indices, best.values), forward(leaf.log_softmax(-1), logq)
    assert torch.allclose(found, whole, atol=1e-12)
    assert torch.allclose(slope(found.sum(), leaf), slope(whole.sum(), leaf), atol=1e-12)


def test_topk_is_the_cross_entropy_with_the_truncated_teacher() -> None:
    leaf, logq = logits(1).requires_grad_(), logits(2).log_softmax(-1)
    best = logq.topk(3, dim=-1)
    ids, values = torch.full((N, 5), -1), torch.full((N, 5), -torch.inf, dtype=torch.float64)
    ids[:, :3], values[:, :3] = best.indices, best.values
    logp, q = leaf.log_softmax(-1), best.values.exp()
    found = forward_topk(logp, ids, values)
    assert torch.allclose(found, (q * (best.values - logp.gather(1, best.indices))).sum(-1), atol=1e-12)
    expected = logp.detach().exp() * q.sum(-1, keepdim=True)
    expected.scatter_add_(1, best.indices, -q)
    assert torch.allclose(slope(found.sum(), leaf), expected, atol=1e-12)


def test_the_expected_policy_gradient_is_that_of_the_reverse_divergence() -> None:
    """Over all tokens that may be sampled, weighted by π."""
    leaf, logq = logits(1).requires_grad_(), logits(2).log_softmax(-1)
    logp = leaf.log_softmax(-1)
    advantages = sampled_reverse(logp.flatten(), logq.flatten()).view(N, V)
    surrogate = -(logp.detach().exp() * advantages * logp).sum()
    found = torch.autograd.grad(surrogate, leaf, retain_graph=True)[0]
    assert torch.allclose(found, slope(reverse(logp, logq).sum(), leaf), atol=1e-12)


def test_an_excluded_token_counts_as_very_unlikely() -> None:
    found = sampled_reverse(torch.tensor([-1.0, -1.0]), torch.tensor([-1e9, -3.0]))
    assert found.tolist() == [LEAST + 1.0, -2.0]
