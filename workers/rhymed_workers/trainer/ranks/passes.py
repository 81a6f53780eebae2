"""Log-probs of all response tokens of a step, where each rank makes a share of the passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rhymed_workers.trainer.policy.packing import MicroBatch
from rhymed_workers.trainer.policy.policy import Scores
from rhymed_workers.trainer.ranks.group import Alone

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
