"""Keyed sampling in vLLM's model runner V2: its sampler and its rejection sampler, with the draw replaced.

V2 processes logits, filters rows and computes log-probs as before. Only the draw is by `noise`, in every row, and a
draft is right when it equals the draw of the row before it. So drafts change no token, as in `sampler` for V1; where
V2 rounds otherwise (it divides by the temperature), the runners may differ in a last bit. Floors, which say which
tokens were kept, are in the place of ranks, as in V1.

Slots are V2's places of requests. `pos` is V2's position of a row's input token; the drawn token's is one more.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p
from vllm.v1.worker.gpu.sample.sampler import Sampler
from vllm.v1.worker.gpu.sample.states import SamplingStates
from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

from rhymed.histospec.sampling import places
from rhymed.histospec.sampling.sampler import MASK, Keys, floors_of
from rhymed.histospec.settings import KEY

FLOORED_ROWS = 64  # whose floors are computed at once: it takes several times their logits


class WholeStates(SamplingStates):  # type: ignore[misc, unused-ignore]
    """Keeps logits as they are before the first of min-p, top-k and top-p, in steps with requests that ask for
    floors."""

    rhymed_floored: NDArray[np.bool_]  # by slots: the request asks for floors
    rhymed_whole: torch.Tensor | None

    def apply_min_p(self, logits: torch.Tensor, expanded_idx_mapping: torch.Tensor, idx_mapping_np: Any) -> None:
        self.rhymed_whole = logits.clone() if self.rhymed_floored[idx_mapping_np].any() else None
        super().apply_min_p(logits, expanded_idx_mapping, idx_mapping_np)

    def floors(self, kept_NV: torch.Tensor, slot_N: torch.Tensor) -> torch.Tensor | None:
        """Of each row, see `sampler.floors_of`; 0: not filtered. None: no request asks for them."""
        whole_NV, self.rhymed_whole = self.rhymed_whole, None
        if whole_NV is None:
            return None
        parts = zip(whole_NV.split(FLOORED_ROWS), kept_NV.split(FLOORED_ROWS), strict=True)
        floor_N = torch.cat([floors_of(whole, kept) for whole, kept in parts])
        cut = (self.top_p.gpu < 1) | (self.top_k.gpu < kept_NV.shape[1]) | (self.min_p.gpu > 0)
        return torch.where((cut & (self.temperature.gpu > 0))[slot_N], floor_N, 0.0)


class KeyedSampler(Sampler):  # type: ignore[misc, unused-ignore]  # vLLM is not followed
    """An engine's `Sampler` becomes one by `attach`."""

    rhymed_keys: Keys
    rhymed_floors: list[torch.Tensor | int]  # of the rows of this step, in order; else how many rows have none

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self.with_floors(super().__call__, *given, **named)

    def with_floors(self, sample: Any, *given: Any, **named: Any) -> Any:
        """What `sample` returns, a `SamplerOutput`, with the bits of floors in the place of ranks."""
        self.rhymed_floors = []
        output = sample(*given, **named)
        made, floors = output.logprobs_tensors, self.rhymed_floors
        if made is not None and any(isinstance(one, torch.Tensor) for one in floors):
            ranks = made.selected_token_ranks
            floor_N = torch.cat([ranks.new_zeros(one).float() if isinstance(one, int) else one for one in floors])
            output.logprobs_tensors = made._replace(selected_token_ranks=floor_N.view(torch.int32).to(ranks.dtype))
        return output

    def add_request(self, slot: int, params: Any) -> None:
        extra = (params.extra_args or {}).get(KEY) or {}
        key = extra.get("key", params.seed)
        key = self.rhymed_keys.of(self.req_states.index_to_req_id[slot]) if key is None else int(key) & MASK
        plain = copy.copy(params)
        plain.seed = None  # vLLM's own is a signed word
        if plain.temperature and extra.get("min_p"):  # vLLM refuses its own min-p together with drafts
            plain.min_p = float(extra["min_p"])
        super().add_request(slot, plain)
        self.sampling_states.rhymed_floored[slot] = bool(extra.get("floor"))
        self.sampling_states.seeds.np[slot] = signed(key)
        self.sampling_states.seeds_set[slot] = True  # no fused sampler, which knows no keys

    def forget(self, ids: Iterable[str]) -> None:
        """These requests have ended: the keys of those that came without one."""
        self.rhymed_keys.forget(ids)

    def draw(self, z_NV: torch.Tensor, slot_N: torch.Tensor, pos_N: torch.Tensor) -> torch.Tensor:
        """A token of each row of processed logits, int64 [N]."""
        states = self.sampling_states
        floor_N = states.floors(z_NV, slot_N)
        self.rhymed_floors.append(len(z_NV) if floor_N is None else floor_N)
        return places.draw(z_NV, slot_N, pos_N, states.seeds.gpu, states.temperature.gpu)

    def _sample_random(
        self,
        processed_logits: torch.Tensor,
        expanded_idx_mapping: torch.Tensor,
        idx_mapping_np: Any,
        pos: torch.Tensor,
        top_k: torch.Tensor | None,
        top_p: torch.Tensor | None,
        *others: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        z_NV = apply_top_k_top_p(processed_logits, top_k, top_p)
        return self.draw(z_NV, expanded_idx_mapping, pos), z_NV


class KeyedRejectionSampler(RejectionSampler):  # type: ignore[misc, unused-ignore]
    """Its `sampler` is a `KeyedSampler`."""

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self.sampler.with_floors(super().__call__, *given, **named)

    def _verify(
        self,
        logits: torch.Tensor,
        draft_logits: torch.Tensor | None,
        draft_sampled: torch.Tensor,
        pos: torch.Tensor,
        cu_num_logits: torch.Tensor,
        idx_mapping: torch.Tensor,
        idx_mapping_np: Any,
        expanded_idx_mapping: torch.Tensor,
        expanded_local_pos: torch.Tensor,
        seq_lens_upper_bound_np: Any,
        verify_draft_sampled: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(processed logits, tokens int64 [B, width], how many of each request's are right, int32 [B])."""
        z_NV = self.sampler.apply_sampling_params(
            logits,
            expanded_idx_mapping,
            idx_mapping,
            idx_mapping_np,
            pos,
            draft_sampled,
            expanded_local_pos,
            seq_lens_upper_bound_np,
        )
        token_N = self.sampler.draw(z_NV, expanded_idx_mapping, pos)
        kept = accepted(
            token_N, verify_draft_sampled, expanded_local_pos, len(idx_mapping), self.num_speculative_steps + 1
        )
        return z_NV, *kept


def accepted(
    token_N: torch.Tensor, input_N: torch.Tensor, place_N: torch.Tensor, requests: int, width: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens int64 [B, width] and, of each request, the number up to its first token that differs from its draft,
    int32 [B]. Does not wait for a device. `input_N`: each row's input token, a draft in every row but a request's
    first; `place_N`: the row's place among those of its request."""
    begins_N = place_N == 0
    request_N = begins_N.cumsum(0) - 1
    right_N = torch.roll(input_N, -1).to(token_N.dtype) == token_N
    right_N &= ~torch.roll(begins_N, -1)  # a request's last row has no draft after it, nor has the last of all
    at_N = request_N * width + place_N
    tokens_BT = token_N.new_full((requests * width,), -1).index_copy_(0, at_N, token_N).view(requests, width)
    right_BT = right_N.new_zeros(requests * width).index_copy_(0, at_N, right_N).view(requests, width)
    return tokens_BT, (right_BT.cumprod(1).sum(1) + 1).to(torch.int32)


def attach(runner: Any) -> str:
    """Makes the samplers of a loaded V2 runner keyed ones. Returns why not, or nothing. May be called again."""
    sampler, rejection = runner.sampler, runner.rejection_sampler
    if sampler is None or isinstance(sampler, KeyedSampler):  # none: an earlier stage of a pipeline
        return ""
    for found, known in ((sampler, Sampler), (rejection, RejectionSampler)):
        if found is not None and type(found) is not known:
            return f"vLLM's model runner V2 samples by {type(found).__module__}.{type(found).__name__}"
    if rejection is not None and rejection.synthetic_conditional_rates is not None:
        return "the acceptance rates of drafts are synthetic"
    sampler.__class__ = KeyedSampler
    sampler.rhymed_keys = Keys(runner.model_config.seed)
    sampler.rhymed_floors, states = [], sampler.sampling_states
    states.__class__ = WholeStates
    states.rhymed_floored, states.rhymed_whole = np.zeros(len(states.seeds_set), np.bool_), None
    if rejection is not None:
        rejection.__class__ = KeyedRejectionSampler
    return ""


def signed(word: int) -> int:
    """64 bits as int64."""
    return word - 2**64 if word >= 2**63 else word
