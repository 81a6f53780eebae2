"""Gradients of samples, added to the parameters' `grad`: a micro-batch of policy and reference at a time.

Knows no optimizer, no critic and no step.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from rhymed.config import Trainer
from rhymed_store.client import StoredSample
from rhymed_workers.trainer.algorithms.losses import token_losses
from rhymed_workers.trainer.batch import Batch, LogProbs, Values, assemble, engine_logprobs
from rhymed_workers.trainer.policy.packing import MicroBatch, micro_batches
from rhymed_workers.trainer.policy.policy import Policy, Scores
from rhymed_workers.trainer.ranks import passes
from rhymed_workers.trainer.ranks.group import Alone
from rhymed_workers.trainer.teacher.distillation import Targets
from rhymed_workers.trainer.teacher.exact import distil, follow
from rhymed_workers.trainer.tokenstats.sums import Sums
from rhymed_workers.trainer.tokenstats.take import Taken
from rhymed_workers.trainer.turns import sequences_of


class Gradients:
    """`longest`: limit of response tokens."""

    def __init__(
        self, config: Trainer, longest: int, policy: Policy, reference: Scores | None = None, *, ranks: Alone
    ) -> None:
        self._config, self._recipe, self._longest = config, config.recipe, longest
        self._policy, self._reference, self._ranks = policy, reference, ranks

    def assemble(
        self, samples: Sequence[StoredSample], values: Values | None = None, *, dense: bool = False
    ) -> Batch:
        logs = self._logprobs, self._reference_logprobs, values
        return assemble(samples, self._config, self._longest, *logs, dense=dense).to(self._policy.device)

    def accumulate(
        self, micro: MicroBatch, batch: Batch, sums: Sums, taught: Targets | None = None, taken: Taken | None = None
    ) -> Tensor:
        """Add the gradient of a micro-batch; returns its part of the loss."""

        def loss(logp_N: Tensor, entropy_N: Tensor, flat_N: Tensor) -> Tensor:
            tokens = batch.tokens(logp_N, flat_N)
            if taught is not None and not taught.exact:
                tokens = taught.advise(tokens, flat_N)
            found = token_losses(tokens, self._recipe)
            sums.add(found, entropy_N)
            sampled = self._recipe.loss != "likelihood"  # else no engine wrote the tokens
            if sampled:
                sums.compare(tokens.engine_N, tokens.old_N)
            if taken:
                taken.add(tokens, entropy_N, flat_N, sampled=sampled)
            return (found.loss_N * batch.weights_N[flat_N]).sum()

        recipe, alone = self._recipe, self._only_taught(taught)
        value = torch.zeros((), dtype=torch.float64, device=self._policy.device)
        if not alone:
            whole = recipe.whole_sequences(updates=len(batch.updates))
            value = value + self._policy.backward(micro, loss, whole_sequences=whole)
        if taught is not None and taught.exact:
            value = value + distil(self._policy, micro, batch, taught, sums, alone=alone)
        sums.loss += value.double()
        return value

    def follow(self, micro: MicroBatch, taught: Targets | None = None) -> None:
        """The passes of a micro-batch, for the other ranks' sake."""
        if not self._only_taught(taught):
            self._policy.follow(micro)
        if taught is not None and taught.exact:
            follow(self._policy, micro, taught)

    def _only_taught(self, taught: Targets | None) -> bool:
        """An exact divergence is the only loss."""
        return taught is not None and taught.exact and self._recipe.advantage == "none" and not self._recipe.dense

    def compare(self, samples: Sequence[StoredSample], sums: Sums) -> None:
        """No sample had a signal: engine and trainer are still compared, on one micro-batch."""
        sequences = sequences_of(samples)
        batches = micro_batches(sequences, range(len(sequences)), self._config.micro_tokens)
        if not batches:
            return
        logp_N = self._policy.logprobs(batches[0]).cpu()
        if self._ranks.rank == 0:
            sums.compare(engine_logprobs(samples)[batches[0].flat_N], logp_N)

    def _logprobs(self, batches: Sequence[MicroBatch], count: int) -> Tensor:
        return passes.logprobs(self._policy, self._ranks, batches, count)

    @property
    def _reference_logprobs(self) -> LogProbs | None:
        return partial(passes.logprobs, self._reference, self._ranks) if self._reference else None
