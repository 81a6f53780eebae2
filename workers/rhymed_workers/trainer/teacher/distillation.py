"""What a teacher adds to a step. Without state: a resumed run asks the same. Knows neither store nor optimizer.

Sampled: it is asked once about all samples, before the first update, and its log-probs of the sampled tokens become a
part of their advantages. Exact: its distribution at every token is a loss of its own, micro-batch by micro-batch
(`exact`); a server is asked for its likeliest tokens before the first update.

`Distillation` is the whole; the divergences are pure functions below it.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
import torch
from torch import Tensor

from rhymed.core.config import Config, Teacher
from rhymed.inputs.supervision import TeacherRenderer, load_teacher_renderer
from rhymed_store.client import StoredSample
from rhymed_workers.trainer.algorithms.tokens import Tokens
from rhymed_workers.trainer.policy.backbone import Compute
from rhymed_workers.trainer.policy.packing import MicroBatch, Sequences, micro_batches
from rhymed_workers.trainer.policy.policy import Policy
from rhymed_workers.trainer.ranks import ALONE, Alone, Step
from rhymed_workers.trainer.ranks import logprobs as response_logprobs
from rhymed_workers.trainer.teacher.remote import RemoteTeacher
from rhymed_workers.trainer.teacher.start import Found, find_teacher
from rhymed_workers.trainer.turns import sequences_of

# A teacher in the trainer's process: log-probs and micro-batches of its own sequences.

WHOLE = 1 << 60
"""Tokens: everything in one micro-batch."""


def logprobs(
    teacher: Policy, sequences: Sequence[Sequences], micro_tokens: int, ranks: Alone, progress: Step
) -> Tensor:
    """(N,) of all learned tokens, sample after sample. Each rank makes a share of the passes."""
    batches = micro_batches(sequences, range(len(sequences)), micro_tokens, grade=teacher.grade)
    count = sum(sequence.size for sequence in sequences)
    return response_logprobs(teacher, ranks, batches, count, progress)


def same_tokens(micro: MicroBatch, sequences: Sequence[Sequences]) -> MicroBatch:
    """The sequences of the policy's micro-batch behind the teacher's prompts."""
    (batch,) = micro_batches(sequences, sorted(micro.sequences), WHOLE)
    return batch


# The sequences that a teacher reads: its own prompts, and the responses of the policy.


class TeacherPrompts:
    """Without a renderer the teacher's prompts are the policy's, whose tokens come with the samples."""

    def __init__(self, render: TeacherRenderer | None = None) -> None:
        self._render = render
        self.reads_rows = render is not None

    def sequences(self, samples: Sequence[StoredSample]) -> list[Sequences]:
        """Those of the policy, in their order, without floors: a teacher's log-probs are among all tokens. Raises
        `DataError` for a row that has no demonstration."""
        samples = [dataclasses.replace(sample, floors=None) for sample in samples]
        if self._render is None:
            return sequences_of(samples)
        prompts: dict[str, np.ndarray[tuple[int], np.dtype[np.int64]]] = {}
        for sample in samples:
            name = sample.info.id.prompt
            if name not in prompts:
                assert sample.row is not None, "samples are fetched with their rows"
                prompts[name] = np.array(self._render(f"prompt {name}", sample.row), np.int64)
        return sequences_of(samples, [prompts[sample.info.id.prompt] for sample in samples])


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


# Divergences between the policy π and the teacher q, over the vocabulary or on the sampled tokens.
#
# Pure functions of log-probs, (N, V) each: response tokens x vocabulary. The gradient flows into those of π.
# Definitions as in TRL's generalised Jensen-Shannon divergence (arXiv 2306.13649, equation 1), where a beta of 0
# stands for the forward KL divergence and 1 for the reverse one. Knows no model.

LEAST = -50.0
"""Nats. A sampled token that the teacher all but excludes counts as this likely: it must not drown a batch."""


def reverse(logp_NV: Tensor, logq_NV: Tensor) -> Tensor:
    """(N,) KL(π || q): seeks the teacher's modes."""
    return (logp_NV.exp() * (logp_NV - logq_NV)).sum(-1)


def forward(logp_NV: Tensor, logq_NV: Tensor) -> Tensor:
    """(N,) KL(q || π): covers all of the teacher's modes."""
    return (logq_NV.exp() * (logq_NV - logp_NV)).sum(-1)


def mixed(logp_NV: Tensor, logq_NV: Tensor, beta: float) -> Tensor:
    """(N,) beta KL(q || m) + (1 - beta) KL(π || m) with m = (1 - beta) π + beta q, for 0 < beta < 1."""
    logm_NV = torch.logaddexp(logp_NV + math.log1p(-beta), logq_NV + math.log(beta))
    return (1 - beta) * reverse(logp_NV, logm_NV) + beta * reverse(logq_NV, logm_NV)


def forward_topk(logp_NV: Tensor, ids_NK: Tensor, logq_NK: Tensor) -> Tensor:
    """(N,) the terms of KL(q || π) of the teacher's K likeliest tokens; their sum may be negative.

    An id of -1 fills a row that has fewer. The teacher's other tokens pull nowhere: the gradient by the logits is
    Σ_k q_k (π - [v = k]), as of a cross-entropy with the truncated q.
    """
    there_NK = ids_NK >= 0
    logp_NK = logp_NV.gather(1, ids_NK.clamp(min=0))
    return torch.where(there_NK, logq_NK.exp() * (logq_NK.where(there_NK, 0.0) - logp_NK), 0.0).sum(-1)


def sampled_reverse(logp_N: Tensor, logq_N: Tensor) -> Tensor:
    """(N,) log q - log π of sampled tokens: as advantages, their policy gradient is that of -KL(π || q)."""
    return logq_N.clamp(min=LEAST) - logp_N.detach()


# A server's answers about a step, in all ranks. Only the first rank asks; the others wait for what it got.


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


# Makes the teacher that the configuration names. Blocking: loads a model, or asks a server.


def build(config: Config, policy: Policy, compute: Compute, ranks: Alone = ALONE) -> Distillation | None:
    """None: the configuration names no teacher. `policy`: the one that is trained, its own teacher in `opsd`. Another
    local one is shared by the ranks as the policy is; a server is asked by the first of them.

    Raises `ConfigError` for a teacher that is missing or does not fit, `TrainerError` for a server that fails.
    """
    settings = config.trainer.teacher
    if not settings.used:
        return None
    asks = ranks.rank == 0 or not settings.url
    found = find_teacher(config, settings.patience_s) if asks else Found()
    prompts = TeacherPrompts(load_teacher_renderer(config) if settings.shows else None)
    teacher: Policy | RemoteTeacher
    if settings.url:
        teacher = RemoteTeacher(settings, found.server.name if found.server else "")
    elif settings.named or settings.weights == "initial":
        assert found.folder is not None, "a local teacher has a folder"
        teacher = Policy.load(found.folder, config.rollout.temperature, compute, ranks.mesh).requires_grad_(False)
    else:
        teacher = policy
    return Distillation(settings, prompts, teacher, config.trainer.micro_tokens, ranks)
