"""The sampling parameters of a model runner's batch; rebuilt when the batch changes."""

from __future__ import annotations

import hashlib
from collections.abc import Container
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

from rhymed.histospec.sampling.cpu import Rows
from rhymed.histospec.sampling.transfer import upload
from rhymed.histospec.settings import KEY

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


class Batch:
    """The requests of `runner`, for which vLLM made `metadata`. Axis B: requests."""

    def __init__(self, metadata: Any, runner: Any, keys: Keys) -> None:
        self.metadata = metadata
        requests = [SamplingRequest(runner, id, keys) for id in runner.input_batch.req_ids]
        self.key_B = np.array([request.key for request in requests], np.uint64)
        self.scale_B = np.array([request.scale for request in requests], np.float32)  # 1 / temperature; 0: greedy
        # True: min-p, top-k or top-p
        self.filtered_B: NDArray[np.bool_] = np.array([request.filtered for request in requests], bool)
        min_p_B = np.array([request.min_p for request in requests], np.float32)
        self.log_min_p_B: NDArray[np.float32] | None = None
        if min_p_B.any():
            self.log_min_p_B = np.log(min_p_B, where=min_p_B > 0, out=np.full_like(min_p_B, -np.inf))

    def __len__(self) -> int:
        return len(self.key_B)

    def filter(self, z: torch.Tensor, rows: Rows, start: int = 0) -> tuple[torch.Tensor, Rows]:
        """Applies temperature, min-p, top-k and top-p to the logits of requests with any of the last three; z may
        change in place. The returned rows have the factor that their logits still need. `start`: the first request of
        `rows` in this batch. Does not wait for a device."""
        filtered_B = self.filtered_B[start : start + len(rows.key_B)]
        if not filtered_B.any():
            return z, rows
        counts_B = np.diff(rows.first_B)
        filtered_N = np.repeat(filtered_B, counts_B)
        request_N = np.repeat(np.arange(start, start + len(counts_B)), counts_B)[filtered_N]
        every, z = bool(filtered_N.all()), z.to(torch.float32)
        request, row = upload(request_N, z.device), upload(filtered_N.nonzero()[0], z.device)
        part = z if every else z[row]
        part.mul_(upload(self.scale_B[request_N], z.device)[:, None])
        if self.log_min_p_B is not None:
            floor = part.amax(1) + upload(self.log_min_p_B[request_N], z.device)
            part.masked_fill_(part < floor[:, None], -torch.inf)
        top_k, top_p = (None if x is None else x[request] for x in (self.metadata.top_k, self.metadata.top_p))
        part = apply_top_k_top_p(part, top_k, top_p)
        if every:
            z = part
        else:
            z[row] = part
        return z, rows._replace(scale_B=np.where(filtered_B, np.float32(1), rows.scale_B))


class SamplingRequest:
    """`key`: of the request's noise. `scale`: 1 / temperature; 0: greedy, without noise."""

    def __init__(self, runner: Any, id: str, keys: Keys) -> None:
        params = runner.requests[id].sampling_params
        extra = (params.extra_args or {}).get(KEY) or {}
        key = extra.get("key", params.seed)
        self.key = keys.of(id) if key is None else int(key) & MASK
        self.scale = 0.0 if params.temperature < GREEDY else 1.0 / params.temperature
        # vLLM refuses its own min-p together with drafts.
        self.min_p = float(extra.get("min_p", 0.0)) or params.min_p
        top_k = 0 < params.top_k < runner.input_batch.vocab_size
        self.filtered = self.scale > 0 and bool(self.min_p > 0 or top_k or params.top_p < 1)
