"""The seam between the learner and its ranks: `Alone` for one process, `Group` for several.

Every rank has the same samples and calls the same methods in the same order. Sums are made in the order of the ranks,
so they have the same bits in each of them and in every repetition.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from rhymed_workers.trainer.policy.packing import MicroBatch
from rhymed_workers.trainer.ranks.share import Turn, shares

LONG = timedelta(hours=6)
"""For the slowest rank's part of a checkpoint, and for a server. A rank that dies ends all of them at once."""


class Alone:
    """One rank."""

    rank, size = 0, 1
    mesh: Any = None  # of the devices that share the weights; None: this process has all of them
    savers: Any = None  # a process group of the threads that write checkpoints: training does not wait for it

    def share(self, batches: Sequence[MicroBatch]) -> list[Turn]:
        """This rank's forward passes."""
        return [Turn(batch) for batch in batches]

    def sum(self, numbers: Sequence[float]) -> list[float]:
        """Of all ranks, each by itself."""
        return list(numbers)

    def merge(self, values_N: Tensor, known_N: Tensor) -> Tensor:
        """Values on the CPU, each from the one rank that knows it. Those that no rank knows stay as they are."""
        return values_N

    def first(self, tensor: Tensor) -> Tensor:
        """The first rank's, which may take hours to have it. On the CPU, of the same shape and type in all ranks."""
        return tensor


class Group(Alone):
    """The ranks of torch's default process group, which has gloo for tensors on the CPU."""

    def __init__(self, mesh: Any) -> None:
        self.mesh = mesh
        self.rank, self.size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        self.savers = torch.distributed.new_group(backend="gloo", timeout=LONG)
        self._patient = torch.distributed.new_group(backend="gloo", timeout=LONG)

    def share(self, batches: Sequence[MicroBatch]) -> list[Turn]:
        return shares(batches, self.size)[self.rank]

    def sum(self, numbers: Sequence[float]) -> list[float]:
        mine = torch.tensor(numbers, dtype=torch.float64)
        parts = [torch.empty_like(mine) for _ in range(self.size)]
        torch.distributed.all_gather(parts, mine)
        total = torch.zeros_like(mine)
        for part in parts:
            total += part
        return total.tolist()

    def merge(self, values_N: Tensor, known_N: Tensor) -> Tensor:
        total_N, count_N = torch.where(known_N, values_N, 0), known_N.to(torch.int32)
        torch.distributed.all_reduce(total_N)  # of one number and zeros: exact in any order
        torch.distributed.all_reduce(count_N)
        return torch.where(count_N > 0, total_N, values_N)

    def first(self, tensor: Tensor) -> Tensor:
        torch.distributed.broadcast(tensor, 0, group=self._patient)
        return tensor


ALONE = Alone()
