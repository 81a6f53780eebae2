"""The head's two gradients against autograd's, in float64, and what it keeps in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rhymed_workers.trainer.policy import head as heads
from rhymed_workers.trainer.policy.head import DenseHeadLoss, Head, HeadLoss
from rhymed_workers.trainer.policy.packing import micro_batches
from rhymed_workers.trainer.policy.policy import Policy
from tests.workers.trainer.policy.models import build
from tests.workers.trainer.policy.samples import drawn

COUNT, HIDDEN, VOCABULARY = 23, 6, 40
SLICES = pytest.mark.parametrize("logits_bytes", [4 * VOCABULARY * 5, 1 << 28])


@pytest.fixture
def tensors() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """hidden_NH, weight_VH, target_N, flat_N. Rows of a slice take several turns."""
    torch.manual_seed(0)
    hidden_NH = torch.randn(COUNT, HIDDEN, dtype=torch.float64, requires_grad=True)
    weight_VH = torch.randn(VOCABULARY, HIDDEN, dtype=torch.float64, requires_grad=True)
    return hidden_NH, weight_VH, torch.randint(0, VOCABULARY, (COUNT,)), torch.randperm(COUNT)


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "ROWS_BYTES", 4 * VOCABULARY * 2)


def by_token(logp_N: Tensor, entropy_N: Tensor, flat_N: Tensor) -> Tensor:
    return ((flat_N + 1) * logp_N.exp() * (1 + entropy_N.detach())).sum()


def by_sequence(logp_N: Tensor, entropy_N: Tensor, flat_N: Tensor) -> Tensor:
    return (flat_N * logp_N).mean().exp() + (logp_N * entropy_N.detach()).sum() ** 2


def by_entropy(logp_N: Tensor, entropy_N: Tensor, flat_N: Tensor) -> Tensor:
    return (logp_N * flat_N).sum() - ((flat_N + 2) * entropy_N).sum()


def by_entropy_alone(logp_N: Tensor, entropy_N: Tensor, flat_N: Tensor) -> Tensor:
    return (entropy_N**2).sum()


@SLICES
@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize(
    ("loss", "whole"),
    [
        (by_token, False),
        (by_token, True),
        (by_sequence, True),
        (by_entropy, False),
        (by_entropy, True),
        (by_entropy_alone, False),
    ],
)
def test_gradients_are_those_of_autograd(
    tensors: tuple[Tensor, Tensor, Tensor, Tensor],
    loss: Callable[..., Tensor],
    whole: bool,
    cut: bool,
    logits_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(heads, "LOGITS_BYTES", logits_bytes)
    hidden_NH, weight_VH, target_N, flat_N = tensors
    z_NV, floor_N = hidden_NH @ weight_VH.T / 0.7, None
    if cut:  # some rows are cut to few tokens, the first to its target, which belongs to its tokens wherever it lies
        floor_N = torch.linspace(0, -12, COUNT, dtype=torch.float32)
        floor_N[-1] = -torch.inf
        out_NV = (z_NV.log_softmax(-1) < floor_N[:, None]).scatter(1, target_N[:, None], False)
        assert out_NV[0].sum() == VOCABULARY - 1
        assert not out_NV[-1].any()
        z_NV = z_NV.masked_fill(out_NV, -1e9)
    logp_NV = z_NV.log_softmax(-1)
    entropy_N = -(logp_NV.exp() * logp_NV).sum(-1)
    expected = loss(logp_NV.gather(1, target_N[:, None]).squeeze(1), entropy_N, flat_N)
    gradients = torch.autograd.grad(3 * expected, (hidden_NH, weight_VH))

    head = Head(weight_VH, 0.7, torch.float64)
    found = HeadLoss.apply(hidden_NH, weight_VH, head, target_N, flat_N, loss, whole, floor_N)
    assert torch.allclose(found, expected)
    said_N = head.logprobs(hidden_NH, target_N, floor_N)
    assert torch.allclose(said_N, logp_NV.gather(1, target_N[:, None]).squeeze(1))
    for one, other in zip(torch.autograd.grad(3 * found, (hidden_NH, weight_VH)), gradients, strict=True):
        assert torch.allclose(one, other, atol=1e-12)


@SLICES
def test_a_divergence_over_the_vocabulary(
    tensors: tuple[Tensor, Tensor, Tensor, Tensor], logits_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forward KL to a teacher with another head and another temperature."""
    monkeypatch.setattr(heads, "LOGITS_BYTES", logits_bytes)
    hidden_NH, weight_VH, _, flat_N = tensors
    teacher_NH = torch.randn(COUNT, 3, dtype=torch.float64)
    teacher = Head(torch.randn(VOCABULARY, 3, dtype=torch.float64), 2.0, torch.float64)

    def loss(logp_NV: Tensor, teacher_NV: Tensor, flat_N: Tensor) -> Tensor:
        return ((flat_N + 1)[:, None] * teacher_NV.exp() * (teacher_NV - logp_NV)).sum()

    logp_NV = (hidden_NH @ weight_VH.T / 0.7).log_softmax(-1)
    expected = loss(logp_NV, (teacher_NH @ teacher.weight_VH.T / 2).log_softmax(-1), flat_N)
    gradients = torch.autograd.grad(expected, (hidden_NH, weight_VH))
    head = Head(weight_VH, 0.7, torch.float64)
    found = DenseHeadLoss.apply(hidden_NH, weight_VH, head, (teacher_NH, teacher), flat_N, loss)
    assert torch.allclose(found, expected)
    for one, other in zip(torch.autograd.grad(found, (hidden_NH, weight_VH)), gradients, strict=True):
        assert torch.allclose(one, other, atol=1e-12)


def test_slices_change_no_bit_of_a_whole_loss(
    tensors: tuple[Tensor, Tensor, Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss by tokens has the same slopes whether it is called once or slice by slice."""
    monkeypatch.setattr(heads, "LOGITS_BYTES", 4 * VOCABULARY * 5)
    hidden_NH, weight_VH, target_N, flat_N = tensors
    head = Head(weight_VH, 1.0, torch.float64)
    for whole in (False, True):
        HeadLoss.apply(hidden_NH, weight_VH, head, target_N, flat_N, by_token, whole).backward()
        if not whole:
            first, hidden_NH.grad = hidden_NH.grad, None
    assert torch.equal(hidden_NH.grad, first)


@pytest.mark.parametrize("tied", [False, True])
def test_a_frozen_head_gets_no_gradient(tied: bool) -> None:
    model = build("llama", tie_word_embeddings=tied)
    model.requires_grad_(False)
    model.model.layers[0].mlp.up_proj.weight.requires_grad_()
    (batch,) = micro_batches(drawn([5], [9, 3]), range(2), 100)
    Policy(model).backward(batch, by_token)
    assert [name for name, p in model.named_parameters() if p.grad is not None] == [
        "model.layers.0.mlp.up_proj.weight"
    ]


@pytest.mark.parametrize("trained", ["lm_head", "embed_tokens"])
def test_head_and_embedding_can_be_trained_alone(trained: str) -> None:
    model = build("llama")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trained in name)
    (batch,) = micro_batches(drawn([5], [9, 3]), range(2), 100)
    Policy(model).backward(batch, by_token)
    assert all((parameter.grad is not None) == (trained in name) for name, parameter in model.named_parameters())


class Largest(TorchDispatchMode):
    """Remembers the number of elements of the largest tensor that an operation made."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(made):
            if isinstance(leaf, Tensor) and leaf._base is None:
                self.elements = max(self.elements, leaf.numel())
        return made


def test_a_gpu_gets_larger_slices() -> None:
    """At a vocabulary of 151,936: by its matrix, as no GPU is needed to count."""
    sizes = [
        [part.stop - part.start for part in Head(torch.empty(151_936, 1, device=device)).slices(4000)]
        for device in ("cpu", "meta")
    ]
    assert sizes == [[441] * 9 + [31], [1766, 1766, 468]]


@pytest.mark.parametrize("whole", [False, True])
def test_no_more_logits_exist_than_a_slice(whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "LOGITS_BYTES", 4 * 4096 * 16)
    hidden_NH, weight_VH = torch.randn(512, 4, requires_grad=True), torch.randn(4096, 4, requires_grad=True)
    target_N = flat_N = torch.arange(512)
    with Largest() as seen:
        HeadLoss.apply(hidden_NH, weight_VH, Head(weight_VH), target_N, flat_N, by_token, whole).backward()
    assert seen.elements <= 4096 * 16
