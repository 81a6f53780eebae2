"""Divergences between the policy π and the teacher q, over the vocabulary or on the sampled tokens.

Pure functions of log-probs, (N, V) each: response tokens x vocabulary. The gradient flows into those of π.
Definitions as in TRL's generalised Jensen-Shannon divergence (arXiv 2306.13649, equation 1), where a beta of 0 stands
for the forward KL divergence and 1 for the reverse one. Knows no model.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

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
