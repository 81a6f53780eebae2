"""A sum of gradients whose bits do not depend on the order of what is added.

Floating-point sums depend on their order. These are sums of 64-bit integers: a gradient in fixed point, with `POINT`
binary digits behind the point. Each number is rounded to a multiple of 5.6e-17, and a sum has to stay below 256.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from rhymed_workers.trainer.optim.shards import own

POINT = 54
MOST = float(1 << (62 - POINT))
CHUNK = 1 << 24
"""Numbers that are converted at once: large tensors need no second copy."""


class FixedSum:
    """Of the `grad` of these parameters, or of a rank's parts of them. Takes 8 bytes per number once it is begun."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = parameters
        self._sums: list[Tensor | None] = [None] * len(parameters)
        self._peak = 0.0  # no number of the sum is further from 0

    @torch.no_grad()
    def take(self) -> None:
        """Add what the parameters have as `grad`, and remove it there. Waits for the device."""
        highest: list[Tensor] = []
        for number, parameter in enumerate(self._parameters):
            if parameter.grad is None:
                continue
            own_N, total_N = own(parameter.grad).reshape(-1), self._sums[number]
            if total_N is None:
                total_N = self._sums[number] = torch.zeros_like(own_N, dtype=torch.int64)
            for part_N, sum_N in _chunks(own_N, total_N):
                highest.append(torch.linalg.vector_norm(part_N, torch.inf))
                sum_N.add_(part_N.mul_(float(1 << POINT)).round_().to(torch.int64))
            parameter.grad = None
        if highest:
            self._peak += float(torch.stack(highest).max())

    @torch.no_grad()
    def put(self, factor: float) -> None:
        """The sum times `factor` becomes the parameters' `grad`, and the sum is empty.

        It becomes NaN if a number was not finite or the sum may be too large: that update has to be skipped.
        """
        scale = factor / (1 << POINT) if self._peak < MOST else torch.nan
        for number, parameter in enumerate(self._parameters):
            parameter.grad = torch.zeros_like(parameter)
            total_N, self._sums[number] = self._sums[number], None
            if total_N is None:
                continue
            mine = own(parameter.grad)
            found_N = torch.empty_like(total_N, dtype=mine.dtype)
            for part_N, sum_N in _chunks(found_N, total_N):
                part_N.copy_(sum_N.double().mul_(scale))
            mine.copy_(found_N.view_as(mine))
        self._peak = 0.0

    def clear(self) -> None:
        """The sum is empty, and no parameter has a `grad`."""
        self._sums, self._peak = [None] * len(self._parameters), 0.0
        for parameter in self._parameters:
            parameter.grad = None


def _chunks(one_N: Tensor, other_N: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Parts of both, as views. Nothing of empty tensors."""
    if len(one_N):
        yield from zip(one_N.split(CHUNK), other_N.split(CHUNK), strict=True)
