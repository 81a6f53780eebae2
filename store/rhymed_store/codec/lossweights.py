"""Weights of a sample and of its tokens in the loss, at rest: they follow the sample's log-probs in the same entry.

They are needed and deleted with the log-probs. A sample whose weights are all 1 has none, so its entry is what it is
without weights. Layout after the log-probs: checksum (4 bytes), the sample's weight (float64), token weights (float32
each) or nothing, and a byte for which of the two. An entry with weights has an odd size, others an even one, also
where floors follow the log-probs (`records.FLOORS`). Pure.
"""

from __future__ import annotations

import math
import struct
from typing import Any, NamedTuple

import numpy as np

from rhymed.core.errors import MalformedMessage, StoreDamaged
from rhymed_store.codec import frames, records
from rhymed_store.codec.frames import CHECK_BYTES, RESCUE

_WEIGHT = struct.Struct("<d")
_PLAIN, _TOKENS = b"\1", b"\2"  # last byte: with the sample's weight alone, or with token weights, too
_FIXED = CHECK_BYTES + _WEIGHT.size + 1


class LossWeights(NamedTuple):
    sample: float = 1.0
    tokens: bytes = b""  # float32, one per response token; empty: all 1


ONES = LossWeights()


def check(weight: float, tokens: Any, length: int, what: object) -> LossWeights:
    """`tokens`: float32 bytes of the weights of `length` tokens, or empty. Raises `MalformedMessage`."""
    if len(tokens) not in (0, 4 * length):
        raise MalformedMessage(f"{what}: {len(tokens) // 4} token weights for {length} response tokens")
    weights = np.frombuffer(tokens, "<f4")
    if not (math.isfinite(weight) and weight >= 0 and np.isfinite(weights).all() and (weights >= 0).all()):
        raise MalformedMessage(f"{what}: loss weights must be finite and not negative")
    return LossWeights(weight, bytes(tokens))


def pack(weights: LossWeights) -> bytes:
    """What follows the log-probs; empty if all weights are 1."""
    if weights == ONES:
        return b""
    return frames.checked(_WEIGHT.pack(weights.sample) + weights.tokens + (_TOKENS if weights.tokens else _PLAIN))


def tokens_of(entry: Any) -> int:
    """Response tokens of an entry of log-probs, with or without weights; -1 if its size cannot be right."""
    size, per_token = len(entry) - CHECK_BYTES, 4
    if records.has_floors(entry):
        size, per_token = size - len(records.FLOORS), 8
    if len(entry) % 2:
        size -= _FIXED
        per_token += 4 if bytes(entry[-1:]) == _TOKENS else 0
    return size // per_token if size >= 0 and size % per_token == 0 else -1


def without(entry: bytes, length: int) -> bytes:
    """The entry's log-probs and floors alone, as they were before weights were added."""
    return entry[: records.logprobs_end(entry, length)]


def unpack(entry: Any, length: int, what: object) -> LossWeights:
    """Raises `StoreDamaged` naming `what` when the bytes are not those that were written."""
    value = bytes(memoryview(entry)[records.logprobs_end(entry, length) :])
    if not value:
        return ONES
    try:
        body = frames.unchecked(value)
        tokens = body[_WEIGHT.size : -1]
        if len(tokens) != {_PLAIN: 0, _TOKENS: 4 * length}.get(body[-1:], -1):
            raise ValueError("they are of another length")
    except ValueError:
        raise StoreDamaged(f"{what}: its loss weights are damaged at rest; {RESCUE}") from None
    (weight,) = _WEIGHT.unpack_from(body)
    return LossWeights(weight, tokens)
