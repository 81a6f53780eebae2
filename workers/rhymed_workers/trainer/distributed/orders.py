"""What rank 0 asks of the ranks that follow it, samples as bytes, and what a rank does with an order.

An order is what every rank does next, rank 0 included, so their exchanges of tensors meet. No pickles travel.

`exchange` gives rank 0's samples to every rank, and `snapshot` writes a rank's part of a checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from rhymed.core.messages import SampleInfo, TokenReward
from rhymed.core.run.checkpoint import digest_of
from rhymed.inputs.rows import Row
from rhymed_store.client import StoredSample
from rhymed_workers.trainer.learner import TorchLearner
from rhymed_workers.trainer.optim import shards
from rhymed_workers.trainer.saving import Finish


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
    parts: Mapping[str, float]
    token_rewards: Sequence[TokenReward]
    floors: bytes | None


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
        sample.parts,
        sample.token_rewards,
        _bytes(sample.floors),
    )


def _unpacked(one: _Packed) -> StoredSample:
    logprobs, weights, floors = (
        None if content is None else np.frombuffer(content, np.float32)
        for content in (one.logprobs, one.token_weights, one.floors)
    )
    prompt = None if one.prompt_tokens is None else np.frombuffer(one.prompt_tokens, np.uint32)
    tokens = np.frombuffer(one.tokens, np.uint32)
    return StoredSample(
        one.info, tokens, logprobs, prompt, one.weight, weights, one.row, one.parts, one.token_rewards, floors
    )


def _bytes(array: NDArray[Any] | None) -> bytes | None:
    return None if array is None else array.tobytes()


# What a rank does with an order. The same on all of them; exchanges of tensors meet because orders do.


def exchange(samples: Sequence[StoredSample] | None) -> list[StoredSample]:
    """Rank 0's samples, in every rank; the others give None."""
    import torch

    content = bytearray() if samples is None else bytearray(pack(samples))
    size = torch.tensor(len(content))
    torch.distributed.broadcast(size, 0)
    data = torch.frombuffer(content, dtype=torch.uint8) if content else torch.empty(int(size), dtype=torch.uint8)
    torch.distributed.broadcast(data, 0)
    return unpack(data.numpy().tobytes())


def snapshot(learner: TorchLearner, folder: Path, rank: int, *, copy: bool) -> Finish:
    """What it returns writes this rank's files, and returns their digests by name; "" for a file of rank 0 alone."""
    finish = learner.snapshot(folder, copy=copy)

    def with_digests() -> dict[str, str]:
        names = finish()
        own = shards.own_files(folder, rank)
        return {**names, **{str(file.relative_to(folder)): digest_of(file) for file in own}}

    return with_digests
