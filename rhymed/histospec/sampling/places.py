"""Where a batch is sampled: on a CPU by `cpu`, on a GPU by the kernels, which need Triton."""

from __future__ import annotations

import numpy as np
import torch

from rhymed.histospec.sampling import cpu, fused
from rhymed.histospec.sampling.cpu import ThreadTeam
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
    _require_kernels(logits_NV)  # vLLM's profiling run ends here, and so the engine
    both = fused.verify(rows, logits_NV, drafts, want_logprobs, width=width)
    both = fetch(both) if host else both
    return both[0], both[1].view(torch.float32)


def draw(
    z_NV: torch.Tensor, slot_N: torch.Tensor, pos_N: torch.Tensor, keys: torch.Tensor, temperatures: torch.Tensor
) -> torch.Tensor:
    """A token of each row, int64 [N]; nothing waits. `z_NV`: processed logits, already divided by the temperature.
    `pos_N`: of the row's input token. `keys` (words of 64 bits as int64), `temperatures`: of slots."""
    if not on_cpu(z_NV):
        _require_kernels(z_NV)
        return fused.draw(z_NV, slot_N, pos_N, keys, temperatures)
    slot_N = slot_N.long()
    key_N, scale_N, position_N = keys[slot_N], (temperatures[slot_N] != 0).float(), pos_N.long() + 1
    rows = cpu.Rows(
        z_NV.float().contiguous().numpy(),
        np.arange(len(slot_N) + 1),
        cpu.NO_DRAFTS,
        key_N.numpy().view(np.uint64),
        position_N.numpy(),
        scale_N.numpy(),
    )
    return torch.from_numpy(cpu.verify(rows, False)[0][:, 0].astype(np.int64))


def _require_kernels(logits_NV: torch.Tensor) -> None:
    if not fused.runs_on(kind := logits_NV.device.type):
        raise RuntimeError(
            f"keyed sampling on {kind} needs Triton: install it, or do without keyed sampling (its kernels are for"
            " cuda and xpu)"
        )
