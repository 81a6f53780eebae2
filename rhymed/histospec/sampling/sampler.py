"""Replaces vLLM's samplers: draws tokens with position-keyed noise, and verifies drafts by the same draws.

`Keyed` samples a batch; `KeyedSampler` and `KeyedRejectionSampler` call it with the signatures of vLLM's classes.
vLLM's own processors still change the logits. A batch with unsupported parameters is sampled by vLLM (the reason is
logged once), as are its warm-up runs, which sample for no request.

The drawn token is `argmax(z + noise)` with z the processed logits, and a draft is right when it equals the draw. So
plain and speculative decoding give the same tokens, and the quality of drafts only changes the speed.

`Batch` has the sampling parameters of the requests that run.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from collections.abc import Container, Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from vllm.v1.outputs import LogprobsTensors, SamplerOutput
from vllm.v1.sample.logits_processor.builtin import (
    LogitBiasLogitsProcessor,
    MinPLogitsProcessor,
    MinTokensLogitsProcessor,
)
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

from rhymed.histospec.sampling import cpu, places
from rhymed.histospec.sampling.cpu import Rows, ThreadTeam
from rhymed.histospec.sampling.transfer import fetch, upload
from rhymed.histospec.settings import KEY

log = logging.getLogger(__name__)


class Keyed:
    """Samples for the requests of one model runner. `sampler`, `rejection`: vLLM's own; `rejection` may be None."""

    def __init__(self, runner: Any, sampler: Any, rejection: Any) -> None:
        self._runner = runner
        self._sampler = sampler
        self._rejection = rejection
        self._batch: Batch | None = None
        self._keys = Keys(runner.model_config.seed)
        self._threads = ThreadTeam(torch.get_num_threads())
        self._reported: set[str] = set()

    def sample(self, logits: torch.Tensor, metadata: Any, spec: Any | None) -> SamplerOutput | None:
        """None: vLLM samples this batch. `logits` (a row per request, and with `spec` per draft) may be changed."""
        batch = self._current(metadata)
        if batch is None or not self._is_supported(metadata, spec):
            return None
        counts_B = np.ones(len(batch), np.int64)
        if spec is not None:
            counts_B += np.asarray(spec.num_draft_tokens, np.int64)
        first_B = np.concatenate((np.zeros(1, np.int64), counts_B.cumsum()))
        assert first_B[-1] == logits.shape[0], "one row per sampled token"
        raw = self._raw(logits, metadata)
        z = self._processed(logits, metadata, spec, counts_B)
        positions = self._runner.input_batch.num_tokens_no_spec[: len(batch)].astype(np.int64)
        rows = cpu.Rows(cpu.NO_LOGITS, first_B, cpu.NO_DRAFTS, batch.key_B, positions, batch.scale_B)
        drafts = None if spec is None else spec.draft_token_ids
        quick = metadata.max_num_logprobs == 0 and self._sampler.logprobs_mode == "processed_logprobs"
        if quick or metadata.max_num_logprobs is None:
            tokens, logprobs, floors = self._draw(rows, z, drafts, batch, quick)
            made = _sampled_logprobs(tokens, logprobs, floors) if quick else None
            return SamplerOutput(sampled_token_ids=tokens, logprobs_tensors=made)
        z, rows, _ = batch.filter(z.to(torch.float32), rows)
        tokens, _ = places.verify(rows, z, drafts, False, self._threads)
        values = (
            z * _per_row(np.where(rows.scale_B == 0, 1, rows.scale_B), counts_B, z)[:, None] if raw is None else raw
        )
        return SamplerOutput(
            sampled_token_ids=tokens, logprobs_tensors=self._with_top_logprobs(values, metadata, tokens, first_B)
        )

    def batch(self) -> Batch | None:
        """The requests that the runner decodes, in its order; None if there are none."""
        return self._current(self._runner.input_batch.sampling_metadata)

    def refused(self) -> list[str]:
        """Logits processors of this engine with which no batch is sampled with keys, by their classes."""
        drafts = bool(getattr(self._runner, "num_spec_tokens", 0))
        found = _unsupported(self._runner.input_batch.sampling_metadata.logitsprocs, drafts=drafts)
        return [type(processor).__name__ for processor in found]

    def vllm_metadata(self, metadata: Any) -> Any:
        """For a batch that vLLM samples: with the generators of seeded requests, which `attach` removes."""
        ids = self._runner.input_batch.req_ids if metadata is self._runner.input_batch.sampling_metadata else []
        generators = {row: self._runner.requests[id].generator for row, id in enumerate(ids)}
        generators = {row: generator for row, generator in generators.items() if generator is not None}
        return dataclasses.replace(metadata, generators=generators) if generators else metadata

    def _current(self, metadata: Any) -> Batch | None:
        """The runner makes new metadata exactly when its batch has changed; warm-up runs have their own."""
        if metadata is not self._runner.input_batch.sampling_metadata or not self._runner.input_batch.req_ids:
            return None
        if self._batch is None or self._batch.metadata is not metadata:
            self._keys.keep(self._runner.requests)
            self._batch = Batch(metadata, self._runner, self._keys)
        return self._batch

    def _is_supported(self, metadata: Any, spec: Any | None) -> bool:
        holder = getattr(metadata, "thinking_budget_state_holder", None)
        reasons = {
            "a logits processor of the user": bool(_unsupported(metadata.logitsprocs, drafts=spec is not None)),
            "a thinking budget": holder is not None and holder.has_tracked_requests(),
            "log-probs of chosen tokens": bool(getattr(metadata, "logprob_token_ids", None)),
            "synthetic acceptance rates": spec is not None and getattr(self._rejection, "synthetic_mode", False),
            "a logit bias with drafts": spec is not None
            and any(map(_biased, metadata.logitsprocs.non_argmax_invariant)),
        }
        unsupported = {reason for reason, holds in reasons.items() if holds}
        for reason in unsupported - self._reported:
            log.warning("keyed sampling does not support %s: vLLM samples such batches, without keys", reason)
        self._reported |= unsupported
        return not unsupported

    def _raw(self, logits: torch.Tensor, metadata: Any) -> torch.Tensor | None:
        """The values to read log-probs from, if these are asked for as they are before processing."""
        mode = self._sampler.logprobs_mode
        if metadata.max_num_logprobs is None or not mode.startswith("raw"):
            return None
        return self._sampler.compute_logprobs(logits) if mode == "raw_logprobs" else logits.float().clone()

    def _processed(
        self, logits: torch.Tensor, metadata: Any, spec: Any | None, counts_B: NDArray[np.int64]
    ) -> torch.Tensor:
        """After allowed ids, bad words, minimum lengths, biases and penalties; float32 if any of these apply.

        With drafts vLLM treats the last row of a request separately, and misses minimum lengths that the drafts
        reach. With one more draft per request no row that we use is a last one.
        """
        if not _changes_logits(metadata):
            return logits
        z = logits.to(torch.float32)
        if spec is None:
            return self._sampler.apply_logits_processors(z, metadata, False)
        longer = [[*drafts, 0] for drafts in metadata.spec_token_ids[: len(counts_B)]]
        metadata = dataclasses.replace(metadata, spec_token_ids=longer)
        return self._rejection.apply_logits_processors(z, metadata, _Counts(counts_B.tolist()))

    def _draw(
        self, rows: cpu.Rows, z: torch.Tensor, drafts: torch.Tensor | None, batch: Batch, want_logprobs: bool
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Tokens, log-probs and, if a request asks for them, floors (see `Batch.filter`), all [B, width].

        On a device, rows with min-p, top-k or top-p are filtered and drawn in parts of about as many rows as the
        batch has requests: what that takes is in vLLM's own memory profile. Floors take a copy of a part: then parts
        are half as large.
        """
        host = self._reads_tokens_on_host()
        want_floors = want_logprobs and bool(batch.floored_B.any())
        if places.on_cpu(z) or not batch.filtered_B.any():
            z, rows, floor_N = batch.filter(z, rows, floors=want_floors)
            tokens, logprobs = places.verify(rows, z, drafts, want_logprobs, self._threads, host=host)
            return tokens, logprobs, None if floor_N is None else _placed(floor_N, rows.first_B, tokens)
        width = int(np.diff(rows.first_B).max())
        made, floors = [], list[torch.Tensor]()
        for part in rows.parts(max(width, len(batch) // 2 if want_floors else len(batch))):
            first, last = int(rows.first_B[part.start]), int(rows.first_B[part.stop])
            z_part, cut, floor_N = batch.filter(z[first:last], rows.cut(part), part.start, floors=want_floors)
            some = None if drafts is None else drafts[first - part.start : last - part.stop]
            made.append(places.verify(cut, z_part, some, want_logprobs, width=width))
            if want_floors:
                none = made[-1][1].new_zeros(last - first)
                floors.append(_placed(none if floor_N is None else floor_N, cut.first_B, made[-1][0]))
        tokens, logprobs = (torch.cat(pieces) for pieces in zip(*made, strict=True))
        values = [logprobs, *([torch.cat(floors)] if want_floors else [])]
        if host:
            tokens, *words = fetch(torch.stack((tokens, *(value.view(torch.int32) for value in values))))
            values = [word.view(torch.float32) for word in words]
        return tokens, values[0], values[1] if want_floors else None

    def _reads_tokens_on_host(self) -> bool:
        """Whether the step needs its tokens on the host before it ends, and nothing needs them on the device: not
        with asynchronous scheduling, nor for a drafter with a model."""
        drafter = getattr(self._runner, "drafter", None)
        return not self._runner.use_async_scheduling and (drafter is None or hasattr(drafter, "bind"))

    def _with_top_logprobs(
        self, values: torch.Tensor, metadata: Any, tokens: torch.Tensor, first_B: NDArray[np.int64]
    ) -> Any:
        """vLLM's own log-probs, top ones and ranks. values: log-probs or logits, one row per row of logits."""
        if self._sampler.logprobs_mode == "processed_logprobs":
            values = self._sampler.compute_logprobs(values)
        slot_N = _slots(first_B, tokens)
        drawn_N = tokens.reshape(-1)[slot_N].clamp(min=0).long()
        parts = self._sampler.gather_logprobs(values, metadata.max_num_logprobs, drawn_N)[:3]
        return LogprobsTensors(
            *(part.new_zeros((tokens.numel(), *part.shape[1:])).index_copy_(0, slot_N, part) for part in parts)
        )


class KeyedSampler(nn.Module):  # type: ignore[misc, unused-ignore]  # torch is not followed
    """Replaces `vllm.v1.sample.sampler.Sampler`, and has its other methods and attributes."""

    def __init__(self, keyed: Keyed, original: nn.Module) -> None:
        super().__init__()
        self.keyed = keyed
        self.original = original

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("original"), name)

    def forward(self, logits: torch.Tensor, sampling_metadata: Any, *others: Any, **named: Any) -> SamplerOutput:
        drawn = None if others or named else self.keyed.sample(logits, sampling_metadata, None)
        if drawn is not None:
            return drawn
        return self.original(logits, self.keyed.vllm_metadata(sampling_metadata), *others, **named)


class KeyedRejectionSampler(KeyedSampler):
    """Replaces `vllm.v1.sample.rejection_sampler.RejectionSampler`."""

    def forward(  # type: ignore[override, unused-ignore]
        self, metadata: Any, draft_probs: torch.Tensor | None, logits: torch.Tensor, sampling_metadata: Any
    ) -> SamplerOutput:
        if (drawn := self.keyed.sample(logits, sampling_metadata, metadata)) is not None:
            return drawn
        return self.original(metadata, draft_probs, logits, self.keyed.vllm_metadata(sampling_metadata))


@dataclasses.dataclass
class _Counts:
    """The part of vLLM's draft metadata that its logits processors read."""

    num_draft_tokens: list[int]


def _unsupported(processors: Any, *, drafts: bool) -> list[Any]:
    found = [one for one in processors.argmax_invariant if not isinstance(one, MinPLogitsProcessor)]
    if drafts:
        supported = (MinTokensLogitsProcessor, LogitBiasLogitsProcessor)
        found += [one for one in processors.non_argmax_invariant if not isinstance(one, supported)]
    return found


def _biased(processor: Any) -> bool:
    return isinstance(processor, LogitBiasLogitsProcessor) and bool(processor.biases)


def _changes_logits(metadata: Any) -> bool:
    masked = metadata.allowed_token_ids_mask is not None
    active = any(map(_active, metadata.logitsprocs.non_argmax_invariant))
    return bool(active or masked or metadata.bad_words_token_ids or not metadata.no_penalties)


def _active(processor: Any) -> bool:
    """Whether it changes this batch's logits; of a processor that is not vLLM's own, that is not known."""
    if isinstance(processor, MinTokensLogitsProcessor):
        return bool(processor.min_toks)
    return _biased(processor) if isinstance(processor, LogitBiasLogitsProcessor) else True


def _per_row(values_B: NDArray[np.float32], counts_B: NDArray[np.int64], z: torch.Tensor) -> torch.Tensor:
    return upload(np.repeat(values_B, counts_B), z.device)


def _slots(first_B: NDArray[np.int64], tokens: torch.Tensor) -> torch.Tensor:
    """The place of each row of logits among `tokens` [B, width]."""
    counts_B, width = np.diff(first_B), tokens.shape[1]
    start_N = np.repeat(np.arange(len(counts_B)) * width - first_B[:-1], counts_B)
    return upload(start_N + np.arange(len(start_N)), tokens.device)


def _placed(value_N: torch.Tensor, first_B: NDArray[np.int64], tokens: torch.Tensor) -> torch.Tensor:
    """A number of each row of logits, in the shape of `tokens`, 0 where there is no row."""
    value_N = value_N.to(tokens.device)
    return value_N.new_zeros(tokens.numel()).index_copy_(0, _slots(first_B, tokens), value_N).view(tokens.shape)


def _sampled_logprobs(
    tokens: torch.Tensor, logprobs: torch.Tensor, floors: torch.Tensor | None = None
) -> LogprobsTensors:
    """Log-probs of the sampled tokens only. In the place of ranks, which nobody reads, are the bits of floors: vLLM
    takes an integer of each token along."""
    ranks = torch.zeros(tokens.numel(), dtype=torch.int64, device=tokens.device)
    if floors is not None:
        ranks += floors.reshape(-1).view(torch.int32)
    return LogprobsTensors(tokens.clamp(min=0).view(-1, 1), logprobs.view(-1, 1), ranks)


# The sampling parameters of a model runner's batch; rebuilt when the batch changes.

MASK = 2**64 - 1
GREEDY = 1e-5  # temperature below which vLLM samples greedily


class Keys:
    """Keys of requests without a key or a seed: a new one per request, kept while it lives. Equal on all ranks of an
    engine, which see the same requests in the same order."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._drawn = 0
        self._of: dict[str, int] = {}

    def of(self, id: str) -> int:
        if id not in self._of:
            self._drawn += 1
            text = f"{self._seed} {self._drawn} {id}"  # vLLM's ids end with random letters
            self._of[id] = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
        return self._of[id]

    def keep(self, ids: Container[str]) -> None:
        self._of = {id: key for id, key in self._of.items() if id in ids}

    def forget(self, ids: Iterable[str]) -> None:
        for id in ids:
            self._of.pop(id, None)


class Batch:
    """The requests of `runner`, for which vLLM made `metadata`. Axis B: requests."""

    def __init__(self, metadata: Any, runner: Any, keys: Keys) -> None:
        self.metadata = metadata
        requests = [SamplingRequest(runner, id, keys) for id in runner.input_batch.req_ids]
        self.key_B = np.array([request.key for request in requests], np.uint64)
        self.scale_B = np.array([request.scale for request in requests], np.float32)  # 1 / temperature; 0: greedy
        # True: min-p, top-k or top-p
        self.filtered_B: NDArray[np.bool_] = np.array([request.filtered for request in requests], bool)
        # True: wants to know which tokens these left
        self.floored_B: NDArray[np.bool_] = np.array([request.floored for request in requests], bool)
        min_p_B = np.array([request.min_p for request in requests], np.float32)
        self.log_min_p_B: NDArray[np.float32] | None = None
        if min_p_B.any():
            self.log_min_p_B = np.log(min_p_B, where=min_p_B > 0, out=np.full_like(min_p_B, -np.inf))

    def __len__(self) -> int:
        return len(self.key_B)

    def filter(
        self, z: torch.Tensor, rows: Rows, start: int = 0, *, floors: bool = False
    ) -> tuple[torch.Tensor, Rows, torch.Tensor | None]:
        """Applies temperature, min-p, top-k and top-p to the logits of requests with any of the last three; z may
        change in place. The returned rows have the factor that their logits still need. `start`: the first request of
        `rows` in this batch. Does not wait for a device.

        With `floors` also, of each row, the log-prob among all tokens above which tokens were kept; 0: not filtered.
        """
        filtered_B = self.filtered_B[start : start + len(rows.key_B)]
        if not filtered_B.any():
            return z, rows, None
        counts_B = np.diff(rows.first_B)
        filtered_N = np.repeat(filtered_B, counts_B)
        request_N = np.repeat(np.arange(start, start + len(counts_B)), counts_B)[filtered_N]
        every, z = bool(filtered_N.all()), z.to(torch.float32)
        request, row = upload(request_N, z.device), upload(filtered_N.nonzero()[0], z.device)
        part = z if every else z[row]
        part.mul_(upload(self.scale_B[request_N], z.device)[:, None])
        whole = part.clone() if floors else None
        if self.log_min_p_B is not None:
            floor = part.amax(1) + upload(self.log_min_p_B[request_N], z.device)
            part.masked_fill_(part < floor[:, None], -torch.inf)
        top_k, top_p = (None if x is None else x[request] for x in (self.metadata.top_k, self.metadata.top_p))
        part = apply_top_k_top_p(part, top_k, top_p)
        floor_N = None if whole is None else z.new_zeros(len(z)).index_copy_(0, row, floors_of(whole, part))
        if every:
            z = part
        else:
            z[row] = part
        return z, rows._replace(scale_B=np.where(filtered_B, np.float32(1), rows.scale_B)), floor_N


def floors_of(whole_NV: torch.Tensor, kept_NV: torch.Tensor) -> torch.Tensor:
    """Log-probs among all tokens, half-way between the least likely token that was kept and the likeliest that was
    not: there the small differences between an engine's logits and a trainer's move the fewest tokens. -inf: all were
    kept. `whole_NV` changes in place."""
    total_N, out_NV = whole_NV.logsumexp(1), kept_NV.isneginf()
    least_N = kept_NV.masked_fill(out_NV, torch.inf).amin(1)
    most_N = whole_NV.masked_fill_(~out_NV, -torch.inf).amax(1)
    return (least_N + most_N) / 2 - total_N


class SamplingRequest:
    """`key`: of the request's noise. `scale`: 1 / temperature; 0: greedy, without noise."""

    def __init__(self, runner: Any, id: str, keys: Keys) -> None:
        params = runner.requests[id].sampling_params
        extra = (params.extra_args or {}).get(KEY) or {}
        key = extra.get("key", params.seed)
        self.key = keys.of(id) if key is None else int(key) & MASK
        self.floored = bool(extra.get("floor"))
        self.scale = 0.0 if params.temperature < GREEDY else 1.0 / params.temperature
        # vLLM refuses its own min-p together with drafts.
        self.min_p = float(extra.get("min_p", 0.0)) or params.min_p
        top_k = 0 < params.top_k < runner.input_batch.vocab_size
        self.filtered = self.scale > 0 and bool(self.min_p > 0 or top_k or params.top_p < 1)
