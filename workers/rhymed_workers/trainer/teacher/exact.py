"""The exact divergence of one micro-batch, with its gradient: whole distributions, slice by slice in the head.

Does not know how a teacher was asked.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rhymed_workers.trainer.algorithms.losses import TokenLosses
from rhymed_workers.trainer.batch import Batch
from rhymed_workers.trainer.policy.packing import MicroBatch
from rhymed_workers.trainer.policy.policy import Policy
from rhymed_workers.trainer.teacher.distillation import Targets
from rhymed_workers.trainer.teacher.local import same_tokens
from rhymed_workers.trainer.tokenstats.sums import Sums


def distil(policy: Policy, micro: MicroBatch, batch: Batch, taught: Targets, sums: Sums, *, alone: bool) -> Tensor:
    """Add the gradient to the policy's; returns the loss, a scalar on the device.

    `alone`: no other loss sees these tokens, so entropies and the engine's mismatch are summed here.
    """
    target_N = torch.zeros_like(batch.sample_N)  # by the tokens' numbers, as the loss is given them
    target_N[_to(policy, micro.flat_N)] = _to(policy, micro.target_N)

    def loss(logp_NV: Tensor, teacher_NV: Tensor | None, flat_N: Tensor) -> Tensor:
        value_N = taught.divergence(logp_NV, _fitted(teacher_NV, logp_NV.shape[1]), flat_N)
        if alone:
            with torch.no_grad():
                _observe(logp_NV, value_N, target_N, flat_N, batch, sums)
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


def _observe(logp_NV: Tensor, value_N: Tensor, target_N: Tensor, flat_N: Tensor, batch: Batch, sums: Sums) -> None:
    entropy_N = -torch.linalg.vecdot(logp_NV.exp(), logp_NV)
    logp_N = logp_NV.gather(1, target_N[flat_N, None]).squeeze(1)
    sums.add(TokenLosses(value_N, torch.zeros_like(flat_N, dtype=torch.bool), None, None), entropy_N)
    sums.compare(batch.engine_N[flat_N], logp_N if batch.old_N is None else batch.old_N[flat_N])


def _to(policy: Policy, array: object) -> Tensor:
    return torch.as_tensor(array, device=policy.device)
