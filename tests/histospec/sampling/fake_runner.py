"""The part of a model runner that samplers use: a batch of requests, filled as vLLM fills it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BUILTIN_LOGITS_PROCESSORS, LogitsProcessors
from vllm.v1.sample.rejection_sampler import RejectionSampler
from vllm.v1.sample.sampler import Sampler
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata
from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch

V = 300


class Runner:
    """vLLM's own samplers and batch, without a model. `length`: of every request's prompt."""

    def __init__(self, params: list[SamplingParams], mode: str = "processed_logprobs", length: int = 5) -> None:
        config = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=64))
        processors = LogitsProcessors(kind(config, torch.device("cpu"), False) for kind in BUILTIN_LOGITS_PROCESSORS)
        self.vllm_config = SimpleNamespace(additional_config={"rhymed": {"keyed": True}})
        self.model_config = SimpleNamespace(seed=0)
        self.use_async_scheduling = False
        self.sampler: Any = Sampler(mode)
        self.rejection_sampler: Any = RejectionSampler(self.sampler)
        self.input_batch = InputBatch(64, 4096, 4096, torch.device("cpu"), V, [16], [256], logitsprocs=processors)
        self.requests: dict[str, CachedRequestState] = {}
        for row, one in enumerate(params):
            self.add(f"request-{row}", one, length)
        self.input_batch.refresh_metadata()

    def add(self, id: str, params: SamplingParams, length: int, made: tuple[int, ...] = ()) -> None:
        state = CachedRequestState(id, list(range(length)), [], params, None, ([],), 0, list(made))
        state.generator = torch.Generator() if params.seed is not None else None
        self.requests[id] = state
        self.input_batch.add_request(state)

    @property
    def metadata(self) -> Any:
        return self.input_batch.sampling_metadata

    def plain(self, logits: torch.Tensor) -> Any:
        return self.sampler(logits=logits, sampling_metadata=self.metadata)

    def verify(self, logits: torch.Tensor, drafts: list[list[int]]) -> Any:
        for spec, draft in zip(self.input_batch.spec_token_ids, drafts, strict=False):
            spec[:] = draft
        return self.rejection_sampler(spec_metadata(drafts), None, logits, self.metadata)


def spec_metadata(drafts: list[list[int]]) -> SpecDecodeMetadata:
    """With the indices that vLLM's model runner computes (its `make_dummy` leaves them 0)."""
    made = SpecDecodeMetadata.make_dummy(drafts, torch.device("cpu"))
    counts = np.array([len(draft) for draft in drafts])
    last = (counts + 1).cumsum() - 1
    made.bonus_logits_indices = torch.from_numpy(last)
    made.target_logits_indices = torch.from_numpy(np.setdiff1d(np.arange(last[-1] + 1), last))
    return made
