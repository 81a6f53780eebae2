"""Arrays of samples on their way to and from the store: their type is checked, and they lie end to end. Pure."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rhymed.errors import MalformedMessage
from rhymed.messages import SampleInfo, Samples


def tokens_of(values: ArrayLike, what: str) -> NDArray[np.uint32]:
    array = np.asarray(values)
    if array.dtype == np.uint32 and array.ndim == 1:
        return array
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise MalformedMessage(f"{what}: one-dimensional integers expected, not {array.dtype}{array.shape}")
    if array.size and not 0 <= int(array.min()) <= int(array.max()) < 1 << 32:
        raise MalformedMessage(f"{what}: ids outside of 0 .. 2^32 - 1")
    return array.astype(np.uint32)


def join(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    return np.ascontiguousarray(arrays[0]) if len(arrays) == 1 else np.concatenate(arrays)


def cut(frame: Any, dtype: np.dtype[Any], lengths: list[int]) -> list[NDArray[Any]]:
    whole = np.frombuffer(frame, dtype)
    if len(whole) != sum(lengths):
        raise MalformedMessage(f"store sent an array of {len(whole)}, {sum(lengths)} announced")
    ends = list(itertools.accumulate(lengths))
    return [whole[end - length : end] for end, length in zip(ends, lengths, strict=True)]


def bits_of(drafted: NDArray[np.bool_] | None, info: SampleInfo) -> NDArray[np.uint8]:
    """The accepted drafts as in `PutSamples`; empty if they are unknown."""
    if drafted is None:
        return np.zeros(0, np.uint8)
    mask = np.asarray(drafted)
    if mask.shape != (info.length,) or mask.dtype != np.bool_:
        raise MalformedMessage(
            f"sample {info.id}: drafted is {mask.dtype}{mask.shape}, one bool for each of {info.length} tokens"
            " expected"
        )
    return np.packbits(mask)


def token_weights(answer: Samples, frame: Any) -> list[NDArray[np.float32] | None]:
    """Of each sample; None: all 1."""
    lengths = [info.length if has else 0 for info, has in zip(answer.samples, answer.weighted, strict=True)]
    parts = cut(frame, np.dtype(np.float32), lengths)
    return [part if has else None for part, has in zip(parts, answer.weighted, strict=True)]
