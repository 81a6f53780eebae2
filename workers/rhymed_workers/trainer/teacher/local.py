"""A teacher in the trainer's process: log-probs and micro-batches of its own sequences."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from rhymed_workers.trainer.policy.packing import MicroBatch, Sequences, micro_batches
from rhymed_workers.trainer.policy.policy import Policy
from rhymed_workers.trainer.ranks import passes
from rhymed_workers.trainer.ranks.group import Alone
from rhymed_workers.trainer.ranks.passes import Step

WHOLE = 1 << 60
"""Tokens: everything in one micro-batch."""


def logprobs(
    teacher: Policy, sequences: Sequence[Sequences], micro_tokens: int, ranks: Alone, progress: Step
) -> Tensor:
    """(N,) of all learned tokens, sample after sample. Each rank makes a share of the passes."""
    batches = micro_batches(sequences, range(len(sequences)), micro_tokens)
    count = sum(sequence.size for sequence in sequences)
    return passes.logprobs(teacher, ranks, batches, count, progress)


def same_tokens(micro: MicroBatch, sequences: Sequence[Sequences]) -> MicroBatch:
    """The sequences of the policy's micro-batch behind the teacher's prompts."""
    (batch,) = micro_batches(sequences, sorted(micro.sequences), WHOLE)
    return batch
