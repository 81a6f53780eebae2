"""Gradients of samples, added to the parameters' `grad`: a micro-batch of policy and reference at a time.

Knows no optimizer, no critic and no step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from rhymed.core.config import Trainer
from rhymed_store.client import StoredSample
from rhymed_workers.trainer import ranks
from rhymed_workers.trainer.algorithms.losses import TokenLosses, token_losses
from rhymed_workers.trainer.batch import Batch, LogProbs, Values, assemble, engine_logprobs
from rhymed_workers.trainer.policy.head import among_kept
from rhymed_workers.trainer.policy.packing import MicroBatch, micro_batches
from rhymed_workers.trainer.policy.policy import Policy, Scores
from rhymed_workers.trainer.ranks import Alone
from rhymed_workers.trainer.teacher.distillation import Targets, same_tokens
from rhymed_workers.trainer.tokenstats import Sums
from rhymed_workers.trainer.turns import sequences_of

# The exact divergence of one micro-batch, with its gradient: whole distributions, slice by slice in the head.
#
# Does not know how a teacher was asked.


def distil(policy: Policy, micro: MicroBatch, batch: Batch, taught: Targets, sums: Sums, *, alone: bool) -> Tensor:
    """Add the gradient to the policy's; returns the loss, a scalar on the device.

    `alone`: no other loss sees these tokens, so entropies and the engine's mismatch are summed here.
    """
    target_N = torch.zeros_like(batch.sample_N)  # by the tokens' numbers, as the loss is given them
    target_N[_to(policy, micro.flat_N)] = _to(policy, micro.target_N)
    floor_N: Tensor | None = None
    if micro.floor_N is not None:
        floor_N = torch.full(target_N.shape, -torch.inf, device=target_N.device)
        floor_N[_to(policy, micro.flat_N)] = _to(policy, micro.floor_N)

    def loss(logp_NV: Tensor, teacher_NV: Tensor | None, flat_N: Tensor) -> Tensor:
        value_N = taught.divergence(logp_NV, _fitted(teacher_NV, logp_NV.shape[1]), flat_N)
        if alone:
            with torch.no_grad():
                floors = None if floor_N is None else floor_N[flat_N]
                _observe(logp_NV, value_N, target_N[flat_N], flat_N, floors, batch, sums)
        return taught.config.coef * (value_N * batch.weights_N[flat_N]).sum()

    return policy.distil(micro, loss, taught.policy, _read_by_teacher(micro, taught))


def follow(policy: Policy, micro: MicroBatch, taught: Targets) -> None:
    """The passes of `distil` with a loss of 0, where other ranks compute theirs."""
    policy.distil(
        micro, lambda logp_NV, teacher_NV, flat_N: (logp_NV * 0).sum(), taught.policy, _read_by_teacher(micro, taught)
    )


def _read_by_teacher(micro: MicroBatch, taught: Targets) -> MicroBatch | None:
    return same_tokens(micro, taught.sequences) if taught.policy else None


def _fitted(teacher_NV: Tensor | None, vocabulary: int) -> Tensor | None:
    """Ids beyond the policy's are padding of the matrix, which no tokenizer writes: they are left out."""
    if teacher_NV is None or teacher_NV.shape[1] == vocabulary:
        return teacher_NV
    return teacher_NV[:, :vocabulary].log_softmax(-1)


def _observe(
    logp_NV: Tensor,
    value_N: Tensor,
    target_N: Tensor,
    flat_N: Tensor,
    floor_N: Tensor | None,
    batch: Batch,
    sums: Sums,
) -> None:
    """Of these tokens, as the other losses see them: among the kept ones."""
    if floor_N is not None:
        logp_NV = among_kept(logp_NV.clone(), target_N, floor_N)
    entropy_N = -torch.linalg.vecdot(logp_NV.exp(), logp_NV)
    logp_N = logp_NV.gather(1, target_N[:, None]).squeeze(1)
    sums.add(TokenLosses(value_N, torch.zeros_like(flat_N, dtype=torch.bool), None, None), entropy_N)
    sums.compare(batch.engine_N[flat_N], logp_N if batch.old_N is None else batch.old_N[flat_N])


def _to(policy: Policy, array: object) -> Tensor:
    return torch.as_tensor(array, device=policy.device)


class Gradients:
    """`longest`: limit of response tokens. `scorers`: label -> weight."""

    def __init__(
        self,
        config: Trainer,
        longest: int,
        policy: Policy,
        reference: Scores | None = None,
        *,
        ranks: Alone,
        scorers: Mapping[str, float] = {},
    ) -> None:
        self._scorers = scorers
        self._config, self._recipe, self._longest = config, config.recipe, longest
        self._policy, self._reference, self._ranks = policy, reference, ranks

    def assemble(
        self, samples: Sequence[StoredSample], values: Values | None = None, *, dense: bool = False
    ) -> Batch:
        logs = self._logprobs, self._reference_logprobs, values
        grade = self._policy.grade
        batch = assemble(samples, self._config, self._longest, *logs, dense=dense, scorers=self._scorers, grade=grade)
        return batch.to(self._policy.device)

    def accumulate(self, micro: MicroBatch, batch: Batch, sums: Sums, taught: Targets | None = None) -> Tensor:
        """Add the gradient of a micro-batch; returns its part of the loss."""

        def loss(logp_N: Tensor, entropy_N: Tensor, flat_N: Tensor) -> Tensor:
            bonus: Tensor | float
            tokens, bonus = batch.tokens(logp_N, flat_N), 0.0
            if self._recipe.entropy_bonus:
                bonus = self._recipe.entropy_coef * (entropy_N * batch.means_N[flat_N]).sum()
            entropy_N = entropy_N.detach()
            if taught is not None and not taught.exact:
                tokens = taught.advise(tokens, flat_N)
            found = token_losses(tokens, self._recipe)
            sums.add(found, entropy_N)
            if self._recipe.loss != "likelihood":  # else no engine wrote the tokens
                sums.compare(tokens.engine_N, tokens.old_N)
            return (found.loss_N * batch.weights_N[flat_N]).sum() - bonus

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
        batches = micro_batches(sequences, range(len(sequences)), self._config.micro_tokens, grade=self._policy.grade)
        if not batches:
            return
        logp_N = self._policy.logprobs(batches[0]).cpu()
        if self._ranks.rank == 0:
            sums.compare(engine_logprobs(samples)[batches[0].flat_N], logp_N)

    def _logprobs(self, batches: Sequence[MicroBatch], count: int) -> Tensor:
        return ranks.logprobs(self._policy, self._ranks, batches, count)

    @property
    def _reference_logprobs(self) -> LogProbs | None:
        """Among all tokens: which of them the policy leaves out is no property of the reference."""
        reference = self._reference
        if reference is None:
            return None

        def logprobs(batches: Sequence[MicroBatch], count: int) -> Tensor:
            return ranks.logprobs(reference, self._ranks, [replace(one, floor_N=None) for one in batches], count)

        return logprobs
