"""The seam between the learner and its ranks: `Alone` for one process, `Group` for several.

Every rank has the same samples and calls the same methods in the same order. Sums are made in the order of the ranks,
so they have the same bits in each of them and in every repetition.

`shares` divides micro-batches among ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rhymed_workers.trainer.policy.packing import MicroBatch
from rhymed_workers.trainer.policy.policy import Scores

LONG = timedelta(hours=6)
"""For the slowest rank's part of a checkpoint, and for a server. A rank that dies ends all of them at once."""


class Alone:
    """One rank."""

    rank, size = 0, 1
    mesh: Any = None  # of the devices that share the weights; None: this process has all of them

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


# Which rank computes which micro-batches. Pure.
#
# A forward pass of a sharded model is an exchange between all ranks, so each has to make the same number of them.
# Where micro-batches do not suffice, a rank repeats a small one, of which nothing counts.


class Turn(NamedTuple):
    """One forward pass of a rank."""

    batch: MicroBatch
    counts: bool = True


def shares(batches: Sequence[MicroBatch], ranks: int) -> list[list[Turn]]:
    """Every micro-batch is in one rank's share, and all shares are equally long.

    The largest one first, each to the rank with the fewest tokens that has room, so that shares take equally long.
    """
    found: list[list[Turn]] = [[] for _ in range(ranks)]
    if not batches:
        return found
    length, tokens = -(-len(batches) // ranks), [0] * ranks
    for batch in sorted(batches, key=lambda batch: -batch.tokens):
        rank = min((rank for rank in range(ranks) if len(found[rank]) < length), key=lambda rank: tokens[rank])
        found[rank].append(Turn(batch))
        tokens[rank] += batch.tokens
    filler = Turn(min(batches, key=lambda batch: batch.tokens), counts=False)
    return [share + [filler] * (length - len(share)) for share in found]


# Log-probs of all response tokens of a step, where each rank makes a share of the passes.

Step = Callable[[int, int], None]
"""(passes done, passes in total) of this rank. An error that it raises ends the work."""


def logprobs(
    policy: Scores,
    ranks: Alone,
    batches: Sequence[MicroBatch],
    count: int,
    progress: Step = lambda done, total: None,
) -> Tensor:
    """(count,) on the CPU, the same in all ranks; NaN for tokens in no batch."""
    logprobs_N, known_N = torch.full((count,), torch.nan), torch.zeros(count, dtype=torch.bool)
    mine = ranks.share(batches)
    for done, (batch, counts) in enumerate(mine):
        progress(done, len(mine))
        found_N = policy.logprobs(batch)
        if counts:
            flat_N = torch.from_numpy(batch.flat_N)
            logprobs_N[flat_N], known_N[flat_N] = found_N.cpu(), True
    return ranks.merge(logprobs_N, known_N)
