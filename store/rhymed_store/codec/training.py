"""What training needs of a sample besides its tokens, at rest: log-probs, their floors, and its weights in the loss.

An entry lives until a checkpoint covers the step. It is not compressed: mantissas are noise. Pure.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from rhymed.core.errors import MalformedMessage, StoreDamaged
from rhymed_store.codec import frames
from rhymed_store.codec.frames import RESCUE


class LossWeights(NamedTuple):
    sample: float = 1.0
    tokens: bytes = b""  # float32, one per response token; empty: all 1


ONES = LossWeights()


class Entry(NamedTuple):
    logprobs: bytes  # float32, one per response token
    floors: bytes = b""  # likewise, as in PutSamples; empty: it has none
    weights: LossWeights = ONES


def check(weight: float, tokens: Any, length: int, what: object) -> LossWeights:
    """`tokens`: float32 bytes of the weights of `length` tokens, or empty. Raises `MalformedMessage`."""
    if len(tokens) not in (0, 4 * length):
        raise MalformedMessage(f"{what}: {len(tokens) // 4} token weights for {length} response tokens")
    weights = np.frombuffer(tokens, "<f4")
    if not (math.isfinite(weight) and weight >= 0 and np.isfinite(weights).all() and (weights >= 0).all()):
        raise MalformedMessage(f"{what}: loss weights must be finite and not negative")
    return LossWeights(weight, bytes(tokens))


def pack(entry: Entry) -> bytes:
    return frames.pack_struct(entry)


def unpack(value: Any, length: int, what: object) -> Entry:
    """Raises `StoreDamaged` naming `what` when the bytes are not those that were written for so many tokens."""
    entry = frames.unpack_struct(value, Entry, f"{what}: its log-probs are")
    if len(entry.logprobs) != 4 * length or {len(entry.floors), len(entry.weights.tokens)} - {0, 4 * length}:
        raise StoreDamaged(f"{what}: log-probs, floors or weights of another number of tokens; {RESCUE}")
    return entry
