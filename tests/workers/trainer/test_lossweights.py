"""Weights in the loss that a reward returns, from the samples to the gradient of a real model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch

from rhymed_store.client import StoredSample
from rhymed_workers.trainer.learner import TorchLearner
from rhymed_workers.trainer.tokenstats import Sums
from tests.workers.trainer.test_learner import learner, rewarded, samples  # noqa: F401

Make = Callable[..., TorchLearner]

ALGORITHMS = [
    {"algorithm": "grpo"},
    {"algorithm": "dr_grpo"},
    {"algorithm": "gspo", "minibatches": 2},
    {"algorithm": "gmpo", "minibatches": 2},
    {"algorithm": "cispo", "kl_coef": 0.1},
]


def weighted(given: list[StoredSample], seed: int = 0, complement: bool = False) -> list[StoredSample]:
    """Token weights between 0 and 1, or what is left to 1."""
    draw = np.random.default_rng(seed)
    weights = [draw.random(sample.info.length, np.float32) for sample in given]
    return [
        dataclasses.replace(sample, token_weights=1 - own if complement else own)
        for sample, own in zip(given, weights, strict=True)
    ]


def gradients(made: TorchLearner, given: list[StoredSample]) -> tuple[torch.Tensor, dict[str, float]]:
    """Of every update of one step, which is not made."""
    found: list[torch.Tensor] = []

    def keep(loss: float, sums: Sums) -> None:
        parameters = list(made.policy.model.parameters())
        found.append(torch.cat([parameter.grad.flatten() for parameter in parameters if parameter.grad is not None]))
        for parameter in parameters:
            parameter.grad = None

    made._optimize = keep  # type: ignore[method-assign]
    metrics = made.train(given)
    return torch.stack(found), metrics


def test_weights_of_one_change_no_bit(learner: Make) -> None:  # noqa: F811
    given = samples(0)
    ones = [dataclasses.replace(one, token_weights=np.ones(one.info.length, np.float32)) for one in given]
    plain, none = gradients(learner(), given)
    found, metrics = gradients(learner(), ones)
    assert torch.equal(found, plain)
    assert metrics["actor/loss_weight"] == 1
    assert "actor/loss_weight" not in none


@pytest.mark.parametrize("settings", ALGORITHMS)
def test_the_gradient_is_linear_in_the_weights(learner: Make, settings: dict[str, object]) -> None:  # noqa: F811
    """Weights are no part of what the loss is divided by, nor of the advantages."""
    given = samples(0)
    plain, _ = gradients(learner(**settings), given)
    part, metrics = gradients(learner(**settings), weighted(given))
    rest, _ = gradients(learner(**settings), weighted(given, complement=True))
    torch.testing.assert_close(part + rest, plain, rtol=1e-4, atol=1e-6)
    tripled, _ = gradients(learner(**settings), [dataclasses.replace(sample, weight=3.0) for sample in given])
    torch.testing.assert_close(tripled, 3 * plain, rtol=1e-4, atol=1e-6)
    assert 0.3 < metrics["actor/loss_weight"] < 0.7


def test_how_a_weighted_step_is_divided_does_not_show(learner: Make) -> None:  # noqa: F811
    given = weighted(samples(0))
    one, many = (gradients(learner(micro_tokens=size), given)[0] for size in (4096, 1))
    torch.testing.assert_close(one, many, rtol=1e-4, atol=1e-6)


def test_a_sample_of_weight_0_is_not_computed_but_counts(learner: Make) -> None:  # noqa: F811
    given = rewarded(samples(0), lambda info: float(info.id.index))
    halves = [dataclasses.replace(sample, weight=float(sample.info.id.index % 2)) for sample in given]
    zeros = [np.full(one.info.length, one.info.id.index % 2, np.float32) for one in given]
    tokens = [dataclasses.replace(one, token_weights=own) for one, own in zip(given, zeros, strict=True)]
    found, metrics = gradients(learner(), halves)
    same, _ = gradients(learner(), tokens)
    assert torch.equal(found, same)
    assert metrics["actor/tokens"] == sum(one.info.length for one in given if one.info.id.index % 2)
    assert metrics["actor/samples"] == len(given)
