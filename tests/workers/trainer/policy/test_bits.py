"""What of a gradient's bits depends on the layout: nothing but the shapes of the matrix products.

`before` is the arithmetic of the trainer before sequences lay end to end: rows with padding, a mask of T x T, the
head's gradient written by hand into `grad`. `scripts/train_bits.py` compares whole versions on a real run's samples.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rhymed_workers.trainer.policy import policy as policies
from rhymed_workers.trainer.policy.packing import MicroBatch, micro_batches
from rhymed_workers.trainer.policy.policy import Policy
from scripts.train_bits import padded_states
from tests.workers.trainer.policy.samples import drawn

SAMPLES = drawn([15, 37, 21], [9, 20, 3, 1, 31, 2, 12, 26])


def loss(logp_N: Tensor, entropy_N: Tensor, flat_N: Tensor) -> Tensor:
    return (logp_N.exp() * torch.cos(flat_N)).sum() / 100


def before(model: Any, batch: MicroBatch, temperature: float) -> None:
    hidden_NH, weight_VH = padded_states(model, batch, torch.float32), model.get_output_embeddings().weight
    target, flat_N = torch.from_numpy(batch.target_N)[:, None], torch.from_numpy(batch.flat_N)
    weight_VH.grad = torch.zeros_like(weight_VH)
    with torch.no_grad():
        inputs_NH = hidden_NH.detach()
        logp_NV = (inputs_NH @ weight_VH.T).div_(temperature).log_softmax(-1)
        probs_NV = logp_NV.exp()
        with torch.enable_grad():
            leaf_N = logp_NV.gather(1, target).squeeze(1).requires_grad_()
            (slope_N,) = torch.autograd.grad(loss(leaf_N, leaf_N.detach(), flat_N), leaf_N)
        slope = slope_N[:, None] / temperature
        gradient_NV = probs_NV.mul_(-slope).scatter_add_(1, target, slope)
        weight_VH.grad.addmm_(gradient_NV.T, inputs_NH)
    hidden_NH.backward(gradient_NV @ weight_VH.detach())


def gradients(policy: Policy) -> dict[str, Tensor]:
    found = {name: parameter.grad.clone() for name, parameter in policy.model.named_parameters()}
    policy.model.zero_grad(set_to_none=True)
    return found


def test_with_padding_the_bits_are_those_of_before(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Policy.load(tiny_model, temperature=0.8)
    (batch,) = micro_batches(SAMPLES, range(len(SAMPLES)), 4096)
    policy.backward(batch, loss)
    without = gradients(policy)
    before(policy.model, batch, 0.8)
    expected = gradients(policy)
    monkeypatch.setattr(policies, "hidden_states", padded_states)
    policy.backward(batch, loss)
    found = gradients(policy)
    for name in expected:
        assert torch.equal(found[name], expected[name]), name
        assert torch.allclose(without[name], expected[name], atol=1e-7), name
