"""The noise of position-keyed sampling: a pure function of (key, position, token id) with a standard Gumbel law.

A token is drawn as `argmax over v of z[v] + gumbel(key, position, v)`, with z the processed logits; that is a draw
from softmax(z) (Gumbel-max). The key belongs to a sample and the position is the token's index in prompt + response,
so the drawn token depends neither on drafts nor on the batch, the worker or the order of work.

The definition, in words of 32 and 64 bits that wrap around; positions and tokens start at 0:

    mix(w):  w ^= w >> 30; w *= 0xBF58476D1CE4E5B9; w ^= w >> 27; w *= 0x94D049BB133111EB; w ^= w >> 31
    row  = mix(mix(key + 0x9E3779B97F4A7C15) + position * 0xD1342543DE82EF95)       64 bits
    low, high = row mod 2**32, row >> 32
    h = low + v * 0x9E3779B1                                                        32 bits from here
    h ^= h >> 16; h *= 0x21F0AAAD; h ^= h >> 15; h += high; h *= 0x735A2D97; h ^= h >> 15
    eps = (h + 0.5) / 2**32                                                         float64
    g = -log(-log1p(-eps))

`mix` is the finaliser of SplitMix64 (Steele, Lea, Flood 2014); the 32-bit part is the hash "lowbias32" (Wellons
2018) with the second row word in its middle. It is a bijection of v, so no two tokens of a row share their noise, and
a small h is a large g: the tail that decides is the one with resolution (g < 23).

This module is the reference in numpy: slow, and meant to be read. `cpu` computes the same with numba, `kernels` with
Triton.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MASK = 2**64 - 1


def mix(w: int) -> int:
    w = (w ^ (w >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    w = (w ^ (w >> 27)) * 0x94D049BB133111EB & MASK
    return w ^ (w >> 31)


def row_word(key: int, position: int) -> int:
    """The 64 bits that a row's noise is computed from."""
    return mix(mix(key + 0x9E3779B97F4A7C15 & MASK) + position * 0xD1342543DE82EF95 & MASK)


def hashes(key: int, position: int, vocabulary: int) -> NDArray[np.uint32]:
    """h of every token. Shape: [vocabulary]."""
    row = row_word(key, position)
    h = np.uint32(row & 0xFFFFFFFF) + np.arange(vocabulary, dtype=np.uint32) * np.uint32(0x9E3779B1)
    h = (h ^ (h >> np.uint32(16))) * np.uint32(0x21F0AAAD)
    h = (h ^ (h >> np.uint32(15))) + np.uint32(row >> 32)
    h = h * np.uint32(0x735A2D97)
    return h ^ (h >> np.uint32(15))


def gumbel(key: int, position: int, vocabulary: int) -> NDArray[np.float64]:
    """The noise of every token at one position. Shape: [vocabulary]."""
    eps = (hashes(key, position, vocabulary) + 0.5) / 2**32
    noise: NDArray[np.float64] = -np.log(-np.log1p(-eps))
    return noise


def draw(logits_V: NDArray[np.float32], key: int, position: int) -> int:
    """The token at `position`; the lowest id among equals, 0 if no logit is a number above -inf."""
    scores = logits_V.astype(np.float64) + gumbel(key, position, len(logits_V))
    return int(np.argmax(np.where(np.isnan(scores), -np.inf, scores)))
