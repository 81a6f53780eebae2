"""What rank 0 asks of the ranks that follow it, samples as bytes, and what a rank does with an order.

An order is what every rank does next, rank 0 included, so their exchanges of tensors meet. No pickles travel.

`exchange` gives rank 0's samples to every rank, and `snapshot` writes a rank's part of a checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError

from rhymed.core.atomic import sync
from rhymed.core.errors import CheckpointError
from rhymed.core.run.checkpoint import digest_of
from rhymed_store.client import StoredSample
from rhymed_workers.trainer.learner import TorchLearner
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


def _array(kind: Any, content: bytes) -> NDArray[Any]:
    """`kind`: an array's type, which names that of its numbers."""
    _, dtype = get_args(kind)
    return np.frombuffer(content, *get_args(dtype))


_orders = msgspec.msgpack.Decoder(Order)
_samples = msgspec.msgpack.Decoder(list[StoredSample], dec_hook=_array)


def encode(order: Order) -> bytes:
    return msgspec.msgpack.encode(order)


def decode(content: bytes) -> Order:
    return _orders.decode(content)


def pack(samples: Sequence[StoredSample]) -> bytes:
    return msgspec.msgpack.encode(samples, enc_hook=np.ndarray.tobytes)


def unpack(content: bytes) -> list[StoredSample]:
    return _samples.decode(content)


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
    """What it returns writes this rank's files, and returns their digests by name; "" for a file of rank 0. Raises
    `CheckpointError` then: one rank cannot try again alone, so all of them begin again."""
    finish = learner.snapshot(folder, copy=copy)

    def with_digests() -> dict[str, str]:
        try:
            names = finish()
            for name in names if rank else ():
                sync(folder / name)
            return {name: digest_of(folder / name) if rank else "" for name in names}
        except (OSError, SafetensorError) as error:
            cure = "let nothing else remove files there" if "No such file" in str(error) else "free some space"
            raise CheckpointError(f"{folder} cannot be written by rank {rank}: {error}; {cure}") from error

    return with_digests
