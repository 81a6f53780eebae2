"""What a rank does with an order. The same on all of them; exchanges of tensors meet because orders do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from rhymed.run.checkpoint import digest_of
from rhymed_store.client import StoredSample
from rhymed_workers.trainer.gang.orders import pack, unpack
from rhymed_workers.trainer.learner import TorchLearner
from rhymed_workers.trainer.optim import shards
from rhymed_workers.trainer.saving.checkpoints import Finish


def exchange(samples: Sequence[StoredSample] | None) -> list[StoredSample]:
    """Rank 0's samples, in every rank; the others give None."""
    content = bytearray() if samples is None else bytearray(pack(samples))
    size = torch.tensor(len(content))
    torch.distributed.broadcast(size, 0)
    data = torch.frombuffer(content, dtype=torch.uint8) if content else torch.empty(int(size), dtype=torch.uint8)
    torch.distributed.broadcast(data, 0)
    return unpack(data.numpy().tobytes())


def snapshot(learner: TorchLearner, folder: Path, rank: int, *, copy: bool) -> Finish:
    """What it returns writes this rank's files, and returns their digests by name."""
    finish = learner.snapshot(folder, copy=copy)

    def with_digests() -> dict[str, str]:
        finish()
        return {str(file.relative_to(folder)): digest_of(file) for file in shards.own_files(folder, rank)}

    return with_digests
