"""How many of a head's drafts would be right, measured on text that it has not seen, without an engine.

At each position fresh noise is drawn; the policy's token under it and the head's draft under it are compared, with
the true text before them. A later token of a draft counts given that those before it were right.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rhymed.histospec.heads.draw import draw
from rhymed.histospec.heads.fit import DEPTH
from rhymed.histospec.heads.model import Head
from rhymed.histospec.heads.samples import States

PIECE = 256  # positions whose full logits are in memory


class Score(NamedTuple):
    """By depth: the share of right drafts. `coupled`: drawn with the sampler's noise; `likeliest`: the head's most
    probable token."""

    coupled: list[float]
    likeliest: list[float]
    positions: int

    def __str__(self) -> str:
        both = zip(self.coupled, self.likeliest, strict=True)
        return ", ".join(f"{coupled:.0%} ({likeliest:.0%})" for coupled, likeliest in both)


def score(head: Head, states: States, output_VD: torch.Tensor, temperature: float, most: int = 2000) -> Score:
    """`output_VD`: the policy's whole output layer. `most`: positions, evenly spread."""
    starts = torch.nonzero(states.left_N >= DEPTH).flatten()
    starts = starts[torch.linspace(0, len(starts) - 1, min(most, len(starts))).long().unique()]
    right = np.zeros((2, DEPTH))
    for chosen in starts.split(PIECE):
        state = states.hidden_ND[chosen]
        for depth in range(1, DEPTH + 1):
            at = chosen + depth
            state = head.advance(state, states.token_N[at])
            keys, positions = chosen.numpy().astype(np.uint64), states.position_N[at].numpy() + 1
            true = states.hidden_ND[at] @ output_VD.T
            truth = _drawn(true, torch.arange(len(output_VD)), keys, positions, temperature)
            logits = head.logits(state)
            for row, scale in enumerate((temperature, 0.0)):
                right[row, depth - 1] += (_drawn(logits, head.ids_R, keys, positions, scale) == truth).sum()
    shares = right / max(1, len(starts))
    return Score(shares[0].tolist(), shares[1].tolist(), len(starts))


def _drawn(
    logits: torch.Tensor,
    ids: torch.Tensor,
    keys: NDArray[np.uint64],
    positions: NDArray[np.int64],
    temperature: float,
) -> NDArray[np.int32]:
    tokens, lead = np.empty(len(logits), np.int32), np.empty(len(logits), np.float32)
    scale = np.full(len(logits), 1 / temperature if temperature else 0, np.float32)
    draw(logits.numpy(), ids.numpy().astype(np.int32), keys, positions.astype(np.int64), scale, tokens, lead)
    return tokens
