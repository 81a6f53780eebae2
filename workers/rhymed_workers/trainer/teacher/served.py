"""A server's answers about a step, in all ranks. Only the first rank asks; the others wait for what it got."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

import numpy as np
import torch
from torch import Tensor

from rhymed_workers.trainer.policy.packing import Sequences
from rhymed_workers.trainer.ranks.group import Alone
from rhymed_workers.trainer.ranks.passes import Step
from rhymed_workers.trainer.teacher.remote import RemoteTeacher


def asked(
    teacher: RemoteTeacher, sequences: Sequence[Sequences], topk: int, ranks: Alone, progress: Step
) -> list[Tensor]:
    """(N,) log-probs of all response tokens that are learned, and of their `topk` likeliest alternatives (N, K) ids,
    (N, K) log-probs.

    Raises `TrainerError` in the first rank for a server that fails; that ends the others, too.
    """
    count = sum(sequence.size for sequence in sequences)
    found = [torch.empty(count), torch.empty(count, topk, dtype=torch.int64), torch.empty(count, topk)]
    if ranks.rank == 0:
        scored = teacher.score([sequence[:2] for sequence in sequences], topk, progress)
        own = [slice(None) if sequence.learned is None else sequence.learned for sequence in sequences]
        for tensor, part in zip(found, map(attrgetter, ("logprobs_N", "ids_NK", "topk_NK")), strict=True):
            tensor.copy_(
                torch.from_numpy(np.concatenate([part(one)[mask] for one, mask in zip(scored, own, strict=True)]))
            )
    return [ranks.first(tensor) for tensor in found]
