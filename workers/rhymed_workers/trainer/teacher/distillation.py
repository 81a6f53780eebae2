"""What a teacher adds to a step. Without state: a resumed run asks the same. Knows neither store nor optimizer.

Sampled: it is asked once about all samples, before the first update, and its log-probs of the sampled tokens become a
part of their advantages. Exact: its distribution at every token is a loss of its own, micro-batch by micro-batch
(`exact`); a server is asked for its likeliest tokens before the first update.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rhymed.config import Teacher
from rhymed_store.client import StoredSample
from rhymed_workers.trainer.algorithms.tokens import Tokens
from rhymed_workers.trainer.policy.packing import Sequences
from rhymed_workers.trainer.policy.policy import Policy
from rhymed_workers.trainer.ranks.group import ALONE, Alone
from rhymed_workers.trainer.ranks.passes import Step
from rhymed_workers.trainer.teacher.divergence import forward, forward_topk, mixed, reverse, sampled_reverse
from rhymed_workers.trainer.teacher.local import logprobs
from rhymed_workers.trainer.teacher.prompts import TeacherPrompts
from rhymed_workers.trainer.teacher.remote import RemoteTeacher
from rhymed_workers.trainer.teacher.served import asked


@dataclass
class Targets:
    """The teacher's answer about a step's samples. Axis N: all response tokens, sample after sample."""

    config: Teacher
    sequences: Sequence[Sequences]  # with the teacher's prompts
    policy: Policy | None  # a local teacher's; for exact divergences
    logq_N: Tensor | None  # of the sampled tokens; None: an exact divergence with a local teacher
    ids_NK: Tensor | None  # the likeliest tokens; -1: none
    topk_NK: Tensor | None  # their log-probs
    seconds: float  # that the teacher took before the first update
    total: Tensor | float = 0.0  # sum of the divergence over the tokens seen
    seen: int = 0

    @property
    def exact(self) -> bool:
        """The divergence is a loss of its own, not a part of the advantages."""
        return self.config.tokens != "sampled"

    def to(self, device: torch.device) -> Targets:
        names = ("logq_N", "ids_NK", "topk_NK")
        moved = {name: getattr(self, name).to(device) for name in names if getattr(self, name) is not None}
        return dataclasses.replace(self, **moved)

    def advise(self, tokens: Tokens, flat_N: Tensor) -> Tokens:
        """With the gradient of the reverse divergence as a part of their advantages."""
        assert self.logq_N is not None, "the teacher was asked about the sampled tokens"
        gain_N = sampled_reverse(tokens.old_N, self.logq_N[flat_N])
        self._count(-gain_N)
        return dataclasses.replace(tokens, advantages_N=tokens.advantages_N + self.config.coef * gain_N)

    def divergence(self, logp_NV: Tensor, teacher_NV: Tensor | None, flat_N: Tensor) -> Tensor:
        """(N,) exact divergences of these tokens; the gradient flows into `logp_NV`. `teacher_NV`: of a local one."""
        if self.ids_NK is not None and self.topk_NK is not None:
            value_N = forward_topk(logp_NV, self.ids_NK[flat_N], self.topk_NK[flat_N])
        else:
            assert teacher_NV is not None, "a teacher that gives no likeliest tokens is local"
            value_N = _over_vocabulary(self.config)(logp_NV, teacher_NV)
        self._count(value_N.detach())
        return value_N

    def _count(self, value_N: Tensor) -> None:
        self.total, self.seen = self.total + value_N.sum().double(), self.seen + len(value_N)

    def metrics(self, ranks: Alone = ALONE) -> dict[str, float]:
        """Of all ranks, each of which calls it."""
        found, (total, seen) = {"timing_s/teacher": self.seconds}, ranks.sum([float(self.total), self.seen])
        if seen:
            found["distill/divergence"] = total / seen
        return found


class Distillation:
    """`teacher`: a local policy, frozen or the trained one itself, at the temperature of the samples; or a server,
    which only the first of several ranks asks. `micro_tokens`: per pass of a local one.
    """

    def __init__(
        self,
        config: Teacher,
        prompts: TeacherPrompts,
        teacher: Policy | RemoteTeacher,
        micro_tokens: int,
        ranks: Alone = ALONE,
    ) -> None:
        self._config, self._prompts, self._teacher, self._micro_tokens = config, prompts, teacher, micro_tokens
        self._ranks = ranks

    @property
    def reads_rows(self) -> bool:
        """The teacher's prompts are made of the samples' rows."""
        return self._prompts.reads_rows

    def ask(self, samples: Sequence[StoredSample], progress: Step) -> Targets:
        """Raises `TrainerError` for a server that fails, `DataError` for a row without its demonstration."""
        started, config, sequences = time.perf_counter(), self._config, self._prompts.sequences(samples)
        policy: Policy | None = None
        logq_N: Tensor | None = None
        ids_NK: Tensor | None = None
        topk_NK: Tensor | None = None
        if isinstance(self._teacher, RemoteTeacher):
            topk = config.topk if config.tokens == "topk" else 0
            logq_N, *likeliest = asked(self._teacher, sequences, topk, self._ranks, progress)
            if topk:
                ids_NK, topk_NK = likeliest
        elif config.tokens == "sampled":
            logq_N = logprobs(self._teacher, sequences, self._micro_tokens, self._ranks, progress)
        else:
            policy = self._teacher
        return Targets(config, sequences, policy, logq_N, ids_NK, topk_NK, time.perf_counter() - started)


def _over_vocabulary(config: Teacher) -> Callable[[Tensor, Tensor], Tensor]:
    if config.divergence == "mixed":
        return lambda logp_NV, logq_NV: mixed(logp_NV, logq_NV, config.beta)
    return reverse if config.divergence == "reverse" else forward
