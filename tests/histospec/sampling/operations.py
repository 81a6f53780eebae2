"""Keyed sampling with torch operations, on any device: a third form of the definition, which tests compare.

Words of 32 and 64 bits are in int64 tensors, whose products wrap around as the definition's do. All rows are sampled,
even those after a wrong draft: finding out which these are would wait for the device.
"""

from __future__ import annotations

import numpy as np
import torch

from rhymed.histospec.sampling.cpu import Rows
from rhymed.histospec.sampling.transfer import upload

LOW = 0xFFFFFFFF
PART = 2**24  # logits that are sampled at a time; each takes about 40 bytes meanwhile


def verify(
    rows: Rows, logits_NV: torch.Tensor, drafts: torch.Tensor | None, want_logprobs: bool, *, width: int = 0
) -> torch.Tensor:
    """As `cpu.verify`, without waiting for the device: int32 [2, B, width], tokens and the bits of their log-probs.
    The logits and drafts of `rows` are in logits_NV and `drafts`."""
    device = logits_NV.device
    counts_B = np.diff(rows.first_B)
    request_N = np.repeat(np.arange(len(counts_B)), counts_B)
    offset_N = np.arange(len(request_N)) - np.repeat(rows.first_B[:-1], counts_B)
    scale_N = upload(rows.scale_B[request_N], device)
    key_N = upload(rows.key_B[request_N].view(np.int64), device)
    position_N = upload(rows.position_B[request_N] + offset_N, device)
    step = max(1, PART // logits_NV.shape[1])
    parts = [slice(at, at + step) for at in range(0, len(request_N), step)]
    drawn = [draw(logits_NV[p].float(), key_N[p], position_N[p], scale_N[p], want_logprobs) for p in parts]
    token_N, logprob_N = (torch.cat(pieces) for pieces in zip(*drawn, strict=True))
    width = max(width, int(counts_B.max(initial=1)))
    slot_N = request_N * width + offset_N
    places = upload(slot_N, device)
    tokens_BT = torch.full((len(counts_B) * width,), -1, dtype=torch.int64, device=device)
    tokens_BT = tokens_BT.index_copy_(0, places, token_N).view(-1, width)
    logprobs_BT = torch.zeros(len(counts_B) * width, device=device).index_copy_(0, places, logprob_N).view(-1, width)
    kept_BT = tokens_BT >= 0
    if drafts is not None:
        kept_BT &= _kept(tokens_BT, drafts, upload(slot_N[offset_N + 1 < counts_B[request_N]], device))
    tokens_BT = tokens_BT.masked_fill(~kept_BT, -1).to(torch.int32)
    return torch.stack((tokens_BT, logprobs_BT.masked_fill(~kept_BT, 0.0).view(torch.int32)))


def _kept(tokens_BT: torch.Tensor, drafts: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """True up to a request's first token that differs from its draft. `places`: of the drafts' tokens."""
    right_BT = torch.zeros(tokens_BT.numel(), dtype=torch.bool, device=tokens_BT.device)
    right_BT[places] = tokens_BT.view(-1)[places] == drafts
    before_BT = right_BT.view(tokens_BT.shape)[:, :-1].long().cumprod(1).bool()
    return torch.cat((torch.ones_like(tokens_BT[:, :1], dtype=torch.bool), before_BT), 1)


def draw(
    logits_NV: torch.Tensor, key_N: torch.Tensor, position_N: torch.Tensor, scale_N: torch.Tensor, want_logprobs: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens int64 [N] and their log-probs, or zeros."""
    greedy_N = scale_N == 0
    z_NV = logits_NV * torch.where(greedy_N, 1.0, scale_N)[:, None]
    noise_NV = gumbel(key_N, position_N, z_NV.shape[1]).masked_fill_(greedy_N[:, None], 0.0)
    scores_NV = noise_NV.add_(z_NV)
    token_N = scores_NV.masked_fill_(scores_NV.isnan(), -torch.inf).argmax(1)
    if not want_logprobs:
        return token_N, torch.zeros_like(scale_N)
    return token_N, z_NV.gather(1, token_N[:, None])[:, 0] - z_NV.logsumexp(1)


def gumbel(key_N: torch.Tensor, position_N: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """Shape: [N, vocabulary], float64."""
    row_N = _mix(_mix(key_N + _signed(0x9E3779B97F4A7C15)) + position_N * _signed(0xD1342543DE82EF95))
    low_N, high_N = (row_N & LOW)[:, None], _shift(row_N, 32)[:, None]
    h = low_N + torch.arange(vocabulary, device=key_N.device) * 0x9E3779B1 & LOW
    h = (h ^ (h >> 16)) * 0x21F0AAAD & LOW
    h = (h ^ (h >> 15)) + high_N & LOW
    h = h * 0x735A2D97 & LOW
    eps = (h ^ (h >> 15)).double().add_(0.5).mul_(2.0**-32)
    return eps.neg_().log1p_().neg_().log_().neg_()


def _mix(w: torch.Tensor) -> torch.Tensor:
    w = (w ^ _shift(w, 30)) * _signed(0xBF58476D1CE4E5B9)
    w = (w ^ _shift(w, 27)) * _signed(0x94D049BB133111EB)
    return w ^ _shift(w, 31)


def _shift(w: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical shift to the right."""
    return (w >> bits) & ((1 << (64 - bits)) - 1)


def _signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word
