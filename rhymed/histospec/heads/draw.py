"""Draws drafts from a head's logits with the sampler's noise.

The sampler will draw `argmax z[v] + g(key, position, v)` with z the policy's logits / temperature, and g is known
before z is (`rhymed.histospec.sampling.noise`). So the draft is `argmax q[v] + g(key, position, v)` with q the head's
logits / temperature: where q = z it is that token, and otherwise it is at least as often as (1 - TV) / (1 + TV)
(Daliri, Musco, Suresh, arXiv 2408.07978), against max p for the most probable token. Without the sampler's noise
(greedy, or vLLM's own sampler) the most probable token is drafted.

The evidence of a draft is the probability that the noise's winner would stay the winner: its lead over the second.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from rhymed.histospec.jit import native
from rhymed.histospec.sampling.cpu import _bound, _float, _hash, _order, row_word

BLOCK = 64  # tokens whose scores are bounded with vector instructions before any is computed


@native
def draw(
    logits_BR: NDArray[np.float32],
    ids_R: NDArray[np.int32],
    keys_B: NDArray[np.uint64],
    positions_B: NDArray[np.int64],
    scale_B: NDArray[np.float32],
    tokens_B: NDArray[np.int32],
    lead_B: NDArray[np.float32],
) -> None:
    """Fills the token (an id of the policy) and the lead of its score over the second best, in nats, of each row.
    `scale_B`: 1 / temperature; 0: the most probable token."""
    for i in range(len(logits_BR)):
        word = row_word(keys_B[i], positions_B[i])
        tokens_B[i], lead_B[i] = _best(logits_BR[i], ids_R, word, scale_B[i])


@native
def _best(
    logits_R: NDArray[np.float32], ids_R: NDArray[np.int32], word: np.uint64, scale: np.float32
) -> tuple[int, float]:
    low, high = np.uint32(word & np.uint64(0xFFFFFFFF)), np.uint32(word >> np.uint64(32))
    best, second, token = -np.inf, -np.inf, 0
    for start in range(0, len(ids_R), BLOCK):
        block, ids = logits_R[start : start + BLOCK], ids_R[start : start + BLOCK]
        top = np.int32(-(2**31))
        for v in range(len(block)):
            z = block[v] * scale + _bound(_hash(low, high, ids[v])) if scale != 0 else block[v]
            top = max(top, _order(z))
        least = np.float32(second - 1e-5 * (1.0 + abs(second)))
        if least >= np.float32(_float(top)):
            continue
        for v in range(len(block)):
            score = np.float64(block[v])
            if scale != 0:
                h = _hash(low, high, ids[v])
                if block[v] * scale + _bound(h) <= least:
                    continue
                score = np.float64(block[v] * scale) - math.log(-math.log1p(-(np.float64(h) + 0.5) / 2.0**32))
            if score > best:
                best, second, token = score, best, start + v
            elif score > second:
                second = score
    return ids_R[token], best - second
