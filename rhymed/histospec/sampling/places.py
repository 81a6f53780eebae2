"""Where a batch is sampled: on a CPU by `cpu`, on a GPU by the kernels, on other devices by torch operations."""

from __future__ import annotations

import numpy as np
import torch

from rhymed.histospec.sampling import cpu, device, fused
from rhymed.histospec.sampling.threads import ThreadTeam
from rhymed.histospec.sampling.transfer import fetch


def on_cpu(logits_NV: torch.Tensor) -> bool:
    return bool(logits_NV.device.type == "cpu")


def verify(
    rows: cpu.Rows,
    logits_NV: torch.Tensor,
    drafts: torch.Tensor | None,
    want_logprobs: bool,
    threads: ThreadTeam | None = None,
    *,
    width: int = 0,
    host: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `cpu.verify`: tokens int32 and log-probs float32 [B, width]. The logits and drafts of `rows` are in
    logits_NV and `drafts` (None: there are none), on one device. `width`: least width. `host`: waits, and returns
    both on the host; else nothing waits, and they stay on the device."""
    if on_cpu(logits_NV):
        made = drafts if drafts is None else drafts.numpy().astype(np.int64)
        rows = rows._replace(logits_NV=logits_NV.float().contiguous().numpy())
        rows = rows if made is None else rows._replace(drafts=made)
        tokens, logprobs = cpu.verify(rows, want_logprobs, threads, width)
        return torch.from_numpy(tokens), torch.from_numpy(logprobs)
    verify = fused.verify if fused.runs_on(logits_NV.device.type) else device.verify
    both = verify(rows, logits_NV, drafts, want_logprobs, width=width)
    both = fetch(both) if host else both
    return both[0], both[1].view(torch.float32)
