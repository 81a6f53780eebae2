"""Keyed sampling by what vLLM's model runner V2 promises to users, a logits processor: no private name of vLLM.

    LLM(..., logits_processors=["rhymed.histospec.sampling.public:Keyed"])

It draws the token by `noise` and leaves it alone in its row. Whatever samples then takes that token, and whatever
verifies drafts, of any drafter, accepts a draft exactly if it is that token. So tokens are those of `runner_v2`, for
more work per logit. The logit that it leaves is the token's log-prob in the distribution it was drawn from, so an
engine with `logprobs_mode="processed_logits"` gives log-probs. (`raw_logprobs` are right for requests at temperature
1 without filters; processed ones are those of one token, zero.) Requests without a key or seed are left to vLLM.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor

from rhymed.histospec.sampling import places
from rhymed.histospec.sampling.transfer import upload
from rhymed.histospec.settings import KEY

MASK = 2**64 - 1

made = False  # whether vLLM has made a processor in this process


class Keyed(LogitsProcessor):  # type: ignore[misc, unused-ignore]  # vLLM is not followed
    def __init__(self, vllm_config: Any, req_states: Any) -> None:
        global made
        made = True
        size, self._vocabulary, self._device = req_states.max_num_reqs, req_states.vocab_size, req_states.device
        self._of_slots = {
            "key": np.zeros(size, np.uint64),
            "keyed": np.zeros(size, np.bool_),
            "temperature": np.ones(size, np.float32),
            "top_k": np.full(size, self._vocabulary, np.int64),
            "top_p": np.ones(size, np.float32),
            "log_min_p": np.full(size, -np.inf, np.float32),
        }
        self._filtered = np.zeros(size, np.bool_)
        self._there: dict[str, torch.Tensor] = {}  # the same on the device

    def add_request(self, slot: int, params: Any) -> bool:
        extra = (params.extra_args or {}).get(KEY) or {}
        key, min_p = extra.get("key", params.seed), float(extra.get("min_p", 0.0)) or params.min_p
        top_k = params.top_k if 0 < params.top_k < self._vocabulary else self._vocabulary
        values = {
            "key": int(key or 0) & MASK,
            "keyed": key is not None,
            "temperature": params.temperature,
            "top_k": top_k,
            "top_p": params.top_p,
            "log_min_p": np.log(min_p) if min_p else -np.inf,
        }
        for name, value in values.items():
            self._of_slots[name][slot] = value
        self._filtered[slot] = params.temperature > 0 and (min_p > 0 or top_k < self._vocabulary or params.top_p < 1)
        self._there = {}
        return key is not None

    def apply_staged_writes(self) -> None:
        if not self._there:
            bits = self._of_slots | {"key": self._of_slots["key"].view(np.int64)}
            self._there = {name: upload(values.copy(), self._device) for name, values in bits.items()}

    def apply(self, logits: torch.Tensor, ctx: Any) -> torch.Tensor:
        there, slot_N = self._there, ctx.expanded_idx_mapping.long()
        heat_N = there["temperature"][slot_N]
        z_NV = logits.float() / torch.where(heat_N == 0, 1.0, heat_N)[:, None]
        if self._filtered[ctx.idx_mapping_np].any():
            at_N = torch.where(heat_N == 0, self._vocabulary, there["top_k"][slot_N])
            z_NV = filtered(z_NV, there["log_min_p"][slot_N], at_N, there["top_p"][slot_N])
        token_N = places.draw(z_NV, slot_N, ctx.pos, there["key"], there["temperature"])
        logprob_N = z_NV.gather(1, token_N[:, None])[:, 0] - z_NV.logsumexp(1)
        left_N = (logprob_N * torch.where(heat_N == 0, 1.0, heat_N)).to(logits.dtype)  # vLLM divides by it again
        alone_NV = torch.full_like(logits, -torch.inf).scatter_(1, token_N[:, None], left_N[:, None])
        return torch.where(there["keyed"][slot_N][:, None], alone_NV, logits)


def filtered(
    z_NV: torch.Tensor, log_min_p_N: torch.Tensor, top_k_N: torch.Tensor, top_p_N: torch.Tensor
) -> torch.Tensor:
    """Logits with min-p, then top-k, then top-p applied, in the definitions of vLLM: of equal logits all or none stay
    for top-k; the likeliest tokens whose probabilities first reach top-p stay."""
    z_NV = z_NV.masked_fill(z_NV < (z_NV.amax(1) + log_min_p_N)[:, None], -torch.inf)
    sorted_NV, order_NV = z_NV.sort(1)
    least_N = sorted_NV.gather(1, sorted_NV.shape[1] - top_k_N[:, None])
    sorted_NV = sorted_NV.masked_fill(sorted_NV < least_N, -torch.inf)
    below_NV = sorted_NV.softmax(1).cumsum(1) <= 1 - top_p_N[:, None]
    below_NV[:, -1] = False  # the likeliest token stays
    sorted_NV = sorted_NV.masked_fill(below_NV, -torch.inf)
    return sorted_NV.gather(1, order_NV.argsort(1))
