"""A sum in fixed point: the same bits in any order, near the exact sum, and NaN where it cannot hold it."""

from __future__ import annotations

import math
import random

import pytest
import torch
from torch import nn

from rhymed_workers.trainer.overlap.fixed import MOST, POINT, FixedSum


def parameters(*shapes: tuple[int, ...]) -> list[nn.Parameter]:
    return [nn.Parameter(torch.ones(shape)) for shape in shapes]


def summed(gradients: list[list[torch.Tensor | None]], factor: float = 1.0) -> list[torch.Tensor]:
    owners = parameters((3, 4), (5,))
    total = FixedSum(owners)
    for gradient in gradients:
        for owner, tensor in zip(owners, gradient, strict=True):
            owner.grad = None if tensor is None else tensor.clone()
        total.take()
        assert all(owner.grad is None for owner in owners)
    total.put(factor)
    assert all(owner.grad is not None for owner in owners)
    return [owner.grad for owner in owners if owner.grad is not None]


def drawn(count: int, scale: float = 1.0) -> list[list[torch.Tensor | None]]:
    torch.manual_seed(count)
    return [[torch.randn(3, 4) * scale, torch.randn(5) * scale] for _ in range(count)]


@pytest.mark.parametrize("scale", [1e-7, 1e-3, 1.0, 3.0])
def test_any_order_gives_the_same_bits_and_the_sum(scale: float) -> None:
    gradients = drawn(40, scale)
    expected = [
        torch.stack([one[number].double() for one in gradients if one[number] is not None]).sum(0) * 0.37  # type: ignore[union-attr]
        for number in (0, 1)
    ]
    first = summed(gradients, 0.37)
    for seed in range(5):
        shuffled = gradients[:]
        random.Random(seed).shuffle(shuffled)
        for mine, other, exact in zip(first, summed(shuffled, 0.37), expected, strict=True):
            assert torch.equal(mine, other)
            assert (mine.double() - exact).abs().max() <= 40 * 2.0**-POINT + 1e-7 * exact.abs().max()


def test_a_parameter_without_gradient_has_zeros() -> None:
    first, second = summed([[torch.ones(3, 4), None]])
    assert torch.equal(first, torch.ones(3, 4))
    assert torch.equal(second, torch.zeros(5))
    assert all(torch.equal(one, torch.zeros_like(one)) for one in summed([]))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, MOST, 1e30])
def test_what_does_not_fit_makes_the_whole_sum_nan(bad: float) -> None:
    spoilt = torch.zeros(3, 4)
    spoilt[1, 2] = bad
    for gradients in ([[spoilt, None], *drawn(2)], [*drawn(2), [spoilt, torch.ones(5)]]):
        assert all(one.isnan().all() for one in summed(gradients))


def test_many_large_numbers_do_not_wrap_around() -> None:
    large = [[torch.full((3, 4), MOST / 3), None] for _ in range(5)]
    assert summed(large)[0].isnan().all()
    assert torch.equal(summed(large[:2])[0], torch.full((3, 4), 2 * (MOST / 3)))


def test_a_sum_that_was_put_or_cleared_begins_anew() -> None:
    owners = parameters((2,))
    total = FixedSum(owners)
    for clear in (total.clear, lambda: total.put(1.0)):
        owners[0].grad = torch.full((2,), math.inf)
        total.take()
        clear()
        owners[0].grad = torch.tensor([1.0, 2.0])
        total.take()
        total.put(2.0)
        assert owners[0].grad is not None
        assert owners[0].grad.tolist() == [2.0, 4.0]
