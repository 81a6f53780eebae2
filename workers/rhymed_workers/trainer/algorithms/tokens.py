"""What losses get and give, and sums over samples. Pure.

Axis N: response tokens, sample after sample; axis B: all samples of the step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

MAX_LOG = 20.0  # of ratios, so that none becomes infinite


@dataclass(frozen=True)
class Tokens:
    """Some response tokens of a step. Only `logp_N` carries a gradient.

    A function that reads other tokens of the same sample says so; then all of them are here.
    """

    logp_N: Tensor  # of the policy that is trained
    old_N: Tensor  # of the trainer's policy before the step's first update
    engine_N: Tensor  # of the engine while it sampled; NaN: unknown
    advantages_N: Tensor
    sample_N: Tensor  # number of the token's sample
    lengths_B: Tensor  # response tokens of every sample of the step
    reference_N: Tensor | None = None  # of the model that training started from
    updated: bool = True  # since `old_N`; False: all ratios are 1

    def sample_means(self, given_N: Tensor) -> Tensor:
        """(N,) mean over the tokens of the same sample; needs whole samples."""
        return (self.sample_sums(given_N) / self.lengths_N).to(given_N.dtype)

    def sample_sums(self, given_N: Tensor) -> Tensor:
        """(N,) sum over the tokens of the same sample; needs whole samples."""
        sums_B = torch.zeros(len(self.lengths_B), dtype=given_N.dtype, device=given_N.device)
        return sums_B.index_add(0, self.sample_N, given_N)[self.sample_N]

    @property
    def lengths_N(self) -> Tensor:
        """(N,) tokens of the token's sample."""
        return self.lengths_B[self.sample_N]


class Terms(NamedTuple):
    """Per token, before weighting."""

    loss_N: Tensor  # carries the gradient
    clipped_N: Tensor  # bool: the loss removed or limited the gradient


def log_ratios(logp_N: Tensor, other_N: Tensor) -> Tensor:
    return (logp_N - other_N).clamp(-MAX_LOG, MAX_LOG)
