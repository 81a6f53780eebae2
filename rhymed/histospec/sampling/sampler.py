"""Replaces vLLM's samplers: draws tokens with position-keyed noise, and verifies drafts by the same draws.

`Keyed` samples a batch; `KeyedSampler` and `KeyedRejectionSampler` call it with the signatures of vLLM's classes.
vLLM's own processors still change the logits. A batch with unsupported parameters is sampled by vLLM (the reason is
logged once), as are its warm-up runs, which sample for no request.

The drawn token is `argmax(z + noise)` with z the processed logits, and a draft is right when it equals the draw. So
plain and speculative decoding give the same tokens, and the quality of drafts only changes the speed.
"""

from __future__ import annotations

import dataclasses
import logging
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

from rhymed.histospec.sampling import cpu, device
from rhymed.histospec.sampling.batch import Batch, Keys
from rhymed.histospec.sampling.threads import ThreadTeam

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
        z = self._processed(logits.to(torch.float32), metadata, spec, counts_B)
        z, scale_B = self._filter(z, metadata, batch, counts_B)
        drafts = np.empty(0, np.int64) if spec is None else spec.draft_token_ids.cpu().numpy().astype(np.int64)
        rows = cpu.Rows(
            np.empty((0, 0), np.float32) if z.device.type != "cpu" else z.contiguous().numpy(),
            first_B,
            drafts,
            batch.key_B,
            self._runner.input_batch.num_tokens_no_spec[: len(batch)].astype(np.int64),
            scale_B,
        )
        quick = metadata.max_num_logprobs == 0 and self._sampler.logprobs_mode == "processed_logprobs"
        tokens, logprobs = self._verify(rows, z, quick)
        if metadata.max_num_logprobs is None:
            return SamplerOutput(sampled_token_ids=tokens, logprobs_tensors=None)
        if quick:
            return SamplerOutput(sampled_token_ids=tokens, logprobs_tensors=_sampled_logprobs(tokens, logprobs))
        values = z * _per_row(np.where(scale_B == 0, 1, scale_B), counts_B, z)[:, None] if raw is None else raw
        return SamplerOutput(
            sampled_token_ids=tokens, logprobs_tensors=self._with_top_logprobs(values, metadata, tokens, first_B)
        )

    def batch(self) -> Batch | None:
        """The requests that the runner decodes, in its order; None if there are none."""
        return self._current(self._runner.input_batch.sampling_metadata)

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
        others = [p for p in metadata.logitsprocs.argmax_invariant if not isinstance(p, MinPLogitsProcessor)]
        if spec is not None:
            supported = (MinTokensLogitsProcessor, LogitBiasLogitsProcessor)
            others += [p for p in metadata.logitsprocs.non_argmax_invariant if not isinstance(p, supported)]
        reasons = {
            "a logits processor of the user": bool(others),
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
        self, z: torch.Tensor, metadata: Any, spec: Any | None, counts_B: NDArray[np.int64]
    ) -> torch.Tensor:
        """After allowed ids, bad words, minimum lengths, biases and penalties.

        With drafts vLLM treats the last row of a request separately, and misses minimum lengths that the drafts
        reach. With one more draft per request no row that we use is a last one.
        """
        if spec is None:
            return self._sampler.apply_logits_processors(z, metadata, False)
        if not _changes_logits(metadata):
            return z
        longer = [[*drafts, 0] for drafts in metadata.spec_token_ids[: len(counts_B)]]
        metadata = dataclasses.replace(metadata, spec_token_ids=longer)
        return self._rejection.apply_logits_processors(z, metadata, _Counts(counts_B.tolist()))

    def _filter(
        self, z: torch.Tensor, metadata: Any, batch: Batch, counts_B: NDArray[np.int64]
    ) -> tuple[torch.Tensor, NDArray[np.float32]]:
        """Applies temperature, min-p, top-k and top-p for requests with any of the last three; z changes in place.
        Also returns the factor that each request's rows still need (0: greedy)."""
        if not batch.filtered_B.any():
            return z, batch.scale_B
        every = bool(batch.filtered_B.all())
        request = torch.from_numpy(np.repeat(np.arange(len(batch)), counts_B))
        row = torch.from_numpy(np.repeat(batch.filtered_B, counts_B).nonzero()[0])
        request, row = request[row].to(z.device), row.to(z.device)
        part = z if every else z[row]
        part.mul_(torch.from_numpy(batch.scale_B).to(z.device)[request][:, None])
        if batch.log_min_p_B is not None:
            floor = part.amax(1) + torch.from_numpy(batch.log_min_p_B).to(z.device)[request]
            part.masked_fill_(part < floor[:, None], -torch.inf)
        top_k, top_p = (None if x is None else x[request] for x in (metadata.top_k, metadata.top_p))
        part = apply_top_k_top_p(part, top_k, top_p)
        if every:
            z = part
        else:
            z[row] = part
        return z, np.where(batch.filtered_B, np.float32(1), batch.scale_B)

    def _verify(self, rows: cpu.Rows, z: torch.Tensor, want_logprobs: bool) -> tuple[torch.Tensor, torch.Tensor]:
        if z.device.type != "cpu":
            return device.verify(rows, z, want_logprobs)
        tokens, logprobs = cpu.verify(rows, want_logprobs, self._threads)
        return torch.from_numpy(tokens), torch.from_numpy(logprobs)

    def _with_top_logprobs(
        self, values: torch.Tensor, metadata: Any, tokens: torch.Tensor, first_B: NDArray[np.int64]
    ) -> Any:
        """vLLM's own log-probs, top ones and ranks. values: log-probs or logits, one row per row of logits."""
        if self._sampler.logprobs_mode == "processed_logprobs":
            values = self._sampler.compute_logprobs(values)
        counts_B, width = np.diff(first_B), tokens.shape[1]
        start_N = np.repeat(np.arange(len(counts_B)) * width - first_B[:-1], counts_B)
        slot_N = torch.from_numpy(start_N + np.arange(len(start_N))).to(tokens.device)
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


def _biased(processor: Any) -> bool:
    return isinstance(processor, LogitBiasLogitsProcessor) and bool(processor.biases)


def _changes_logits(metadata: Any) -> bool:
    waiting = [p for p in metadata.logitsprocs.non_argmax_invariant if getattr(p, "min_toks", None)]
    masked = metadata.allowed_token_ids_mask is not None
    return bool(waiting or masked or metadata.bad_words_token_ids or not metadata.no_penalties)


def _per_row(values_B: NDArray[np.float32], counts_B: NDArray[np.int64], z: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.repeat(values_B, counts_B)).to(z.device)


def _sampled_logprobs(tokens: torch.Tensor, logprobs: torch.Tensor) -> LogprobsTensors:
    """Log-probs of the sampled tokens only, without ranks."""
    ranks = torch.zeros(tokens.numel(), dtype=torch.int64, device=tokens.device)
    return LogprobsTensors(tokens.clamp(min=0).view(-1, 1), logprobs.view(-1, 1), ranks)
