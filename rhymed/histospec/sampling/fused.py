"""Launches the kernels of `kernels`: keyed sampling on a GPU, with the results of `cpu`.

A step costs one transfer to the device (what is sampled, 12 bytes a row) and two launches, and nothing waits. Scratch
memory: 20 bytes per row and block of `BLOCK` tokens.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rhymed.histospec.sampling import cpu
from rhymed.histospec.sampling.transfer import upload

BLOCK = 2048  # tokens of one program
WARPS = 8
ROWS = 128  # of one program that only describes them


@functools.cache
def runs_on(kind: str) -> bool:
    """Whether the kernels run on devices of this kind; on a CPU only in Triton's interpreter."""
    return _has_triton() and (kind in ("cuda", "xpu") or os.environ.get("TRITON_INTERPRET") == "1")


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def verify(
    rows: cpu.Rows,
    logits_NV: torch.Tensor,
    drafts: torch.Tensor | None,
    want_logprobs: bool,
    *,
    width: int = 0,
    block: int = BLOCK,
    tile: int = 1,
) -> torch.Tensor:
    """As `cpu.verify`, without waiting for the device: int32 [2, B, width], tokens and the bits of their log-probs.

    The logits of `rows` are in logits_NV, of any float type, and its drafts in `drafts` (None: there are none).
    `width`: least width. `tile`: rows of one program.
    """
    assert logits_NV.stride(1) == 1, "a row's logits are contiguous"
    width = max(width, int(np.diff(rows.first_B).max(initial=1)))
    words = upload(_described(rows), logits_NV.device)
    made = torch.empty((2, len(rows.key_B), width), dtype=torch.int32, device=logits_NV.device)
    about, first = words[: 3 * len(logits_NV)], words[3 * len(logits_NV) :]
    _launch(logits_NV, about, first, about if drafts is None else drafts, made, want_logprobs, block, tile)
    return made


def draw(
    z_NV: torch.Tensor,
    slot_N: torch.Tensor,
    pos_N: torch.Tensor,
    keys: torch.Tensor,
    temperatures: torch.Tensor,
    *,
    block: int = BLOCK,
    tile: int = 1,
) -> torch.Tensor:
    """As `places.draw`. Three launches and no transfer: keys and positions are on the device."""
    from rhymed.histospec.sampling import kernels

    assert z_NV.stride(1) == 1, "a row's logits are contiguous"
    count = len(z_NV)
    about = torch.empty(3 * count, dtype=torch.int32, device=z_NV.device)
    kernels.describe[(-(-count // ROWS),)](slot_N, pos_N, keys, temperatures, about, count, ROWS=ROWS)
    first = torch.arange(count + 1, dtype=torch.int32, device=z_NV.device)
    made = torch.empty((2, count, 1), dtype=torch.int32, device=z_NV.device)
    _launch(z_NV, about, first, about, made, False, block, tile)
    return made[0, :, 0].to(torch.int64)


def _launch(
    logits_NV: torch.Tensor,
    about: torch.Tensor,
    first: torch.Tensor,
    drafts: torch.Tensor,
    made: torch.Tensor,
    want_logprobs: bool,
    block: int,
    tile: int,
) -> None:
    """Without drafts any tensor of int32 will do for them: none is read."""
    import triton

    from rhymed.histospec.sampling import kernels

    count, vocabulary = logits_NV.shape
    _, requests, width = made.shape
    blocks = -(-vocabulary // block)
    found = torch.empty(5 * count * blocks, dtype=torch.float32, device=logits_NV.device)
    # Fused multiply-adds would show the rounding error of products: those that are wanted are written out.
    options: dict[str, Any] = {"num_warps": WARPS, "enable_fp_fusion": False}
    options |= {"LOGPROBS": want_logprobs, "ROWS": tile, "BLOCK": block}
    logits, sizes = (logits_NV, logits_NV.stride(0)), (vocabulary, blocks)
    kernels.scan[(-(-count // tile), blocks)](*logits, about, found, count, *sizes, **options)
    tokens, logprobs = made[0], made[1].view(torch.float32)
    kernels.verify[(-(-requests // tile),)](
        *logits,
        about,
        first,
        drafts,
        found,
        tokens,
        logprobs,
        count,
        requests,
        width,
        *sizes,
        BLOCKS=triton.next_power_of_2(blocks),
        **options,
    )


def _described(rows: cpu.Rows) -> NDArray[np.int32]:
    """What the kernels need: [N, 3] low and high word of a row's noise and its scale, then B + 1 first rows."""
    word_N = cpu.row_words(rows)
    about = np.empty((len(word_N), 3), np.uint32)
    about[:, 0] = word_N & np.uint64(0xFFFFFFFF)
    about[:, 1] = word_N >> np.uint64(32)
    about[:, 2] = np.repeat(rows.scale_B, np.diff(rows.first_B)).view(np.uint32)
    return np.concatenate((about.reshape(-1).view(np.int32), rows.first_B.astype(np.int32)))
