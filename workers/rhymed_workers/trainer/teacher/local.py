"""A teacher in the trainer's process: log-probs and micro-batches of its own sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from rhymed_workers.trainer.policy.packing import MicroBatch, Sequences, micro_batches
from rhymed_workers.trainer.policy.policy import Policy

Step = Callable[[int, int], None]
"""(parts done, parts in total). An error that it raises ends the work."""

WHOLE = 1 << 60
"""Tokens: everything in one micro-batch."""


def logprobs(teacher: Policy, sequences: Sequence[Sequences], micro_tokens: int, progress: Step) -> Tensor:
    """(N,) of all response tokens, sample after sample."""
    batches = micro_batches(sequences, range(len(sequences)), micro_tokens)
    found_N = torch.zeros(sum(len(sequence.response) for sequence in sequences), device=teacher.device)
    for done, batch in enumerate(batches):
        progress(done, len(batches))
        found_N[torch.from_numpy(batch.flat_N).to(teacher.device)] = teacher.logprobs(batch)
    return found_N


def same_samples(micro: MicroBatch, sequences: Sequence[Sequences]) -> MicroBatch:
    """The samples of the policy's micro-batch behind the teacher's prompts."""
    (batch,) = micro_batches(sequences, np.unique(micro.sample_N).tolist(), WHOLE)
    return batch
