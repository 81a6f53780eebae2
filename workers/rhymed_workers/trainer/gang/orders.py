"""What rank 0 asks of the ranks that follow it, and samples as bytes. Pure.

An order is what every rank does next, rank 0 included, so their exchanges of tensors meet. No pickles travel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from rhymed.inputs.rows import Row
from rhymed.messages import SampleInfo
from rhymed_store.client import StoredSample


class Load(msgspec.Struct, tag=True, frozen=True):
    """From a checkpoint's folder; None: from the beginning."""

    folder: str | None


class Begin(msgspec.Struct, tag=True, frozen=True):
    """The gradients of groups of this step, whose samples follow over the process group."""

    step: int


class Train(msgspec.Struct, tag=True, frozen=True):
    """The next step. Its samples follow over the process group."""

    run_steps: int


class Gather(msgspec.Struct, tag=True, frozen=True):
    """The weights, for rank 0."""


class Save(msgspec.Struct, tag=True, frozen=True):
    """Each rank its part of a checkpoint; `copy`: from a copy, while the next steps are trained."""

    folder: str
    copy: bool


Order: TypeAlias = Load | Begin | Train | Gather | Save


class _Packed(msgspec.Struct, array_like=True):
    info: SampleInfo
    tokens: bytes
    logprobs: bytes | None
    prompt_tokens: bytes | None
    weight: float
    token_weights: bytes | None
    row: Row | None


_orders = msgspec.msgpack.Decoder(Order)
_samples = msgspec.msgpack.Decoder(list[_Packed])


def encode(order: Order) -> bytes:
    return msgspec.msgpack.encode(order)


def decode(content: bytes) -> Order:
    return _orders.decode(content)


def pack(samples: Sequence[StoredSample]) -> bytes:
    return msgspec.msgpack.encode([_packed(sample) for sample in samples])


def unpack(content: bytes) -> list[StoredSample]:
    return [_unpacked(one) for one in _samples.decode(content)]


def _packed(sample: StoredSample) -> _Packed:
    return _Packed(
        sample.info,
        sample.tokens.tobytes(),
        _bytes(sample.logprobs),
        _bytes(sample.prompt_tokens),
        sample.weight,
        _bytes(sample.token_weights),
        sample.row,
    )


def _unpacked(one: _Packed) -> StoredSample:
    logprobs, weights = (
        None if content is None else np.frombuffer(content, np.float32)
        for content in (one.logprobs, one.token_weights)
    )
    prompt = None if one.prompt_tokens is None else np.frombuffer(one.prompt_tokens, np.uint32)
    return StoredSample(
        one.info, np.frombuffer(one.tokens, np.uint32), logprobs, prompt, one.weight, weights, one.row
    )


def _bytes(array: NDArray[Any] | None) -> bytes | None:
    return None if array is None else array.tobytes()
