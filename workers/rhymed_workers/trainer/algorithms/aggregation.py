"""Weights of tokens, so that the weighted sum of their losses is the batch's loss.

Normalisation is in the weights, so micro-batches of any size add up to the same gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rhymed.algorithms.recipe import Aggregation


def token_weights(
    lengths_B: Tensor, aggregation: Aggregation, *, longest: int, kept_B: Tensor | None = None
) -> Tensor:
    """(N,) weights of the tokens of the B samples of one update.

    `longest`: limit of response tokens, the constant of seq-mean-token-sum-norm. `kept_B`: False for samples that are
    left out: their tokens weigh 0 and do not count in the mean over tokens; they count as samples, as empty ones do.
    """
    kept_B = torch.ones_like(lengths_B, dtype=torch.bool) if kept_B is None else kept_B
    count = len(lengths_B)
    if aggregation == "token-mean":
        weights_B = torch.full((count,), 1.0 / max(1, int(lengths_B[kept_B].sum())))
    elif aggregation == "seq-mean-token-mean":
        weights_B = 1.0 / (count * lengths_B.clamp(min=1).float())
    elif aggregation == "seq-mean-token-sum":
        weights_B = torch.full((count,), 1.0 / max(1, count))
    else:
        weights_B = torch.full((count,), 1.0 / (max(1, count) * longest))
    return weights_B.where(kept_B, 0.0).repeat_interleave(lengths_B)
