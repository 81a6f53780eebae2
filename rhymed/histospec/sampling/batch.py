"""What the requests of a model runner's batch ask of the sampler; made again when the batch has changed."""

from __future__ import annotations

import hashlib
from collections.abc import Container
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rhymed.histospec.settings import KEY

MASK = 2**64 - 1
GREEDY = 1e-5  # vLLM takes the largest logit below this temperature


class Keys:
    """Of requests that bring neither a key nor a seed: new for every request, and kept as long as it lives.

    Equal on all ranks of an engine, which see the same requests in the same order.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._drawn = 0
        self._of: dict[str, int] = {}

    def of(self, id: str) -> int:
        if id not in self._of:
            self._drawn += 1
            text = f"{self._seed} {self._drawn} {id}"  # vLLM ends an id with random letters
            self._of[id] = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
        return self._of[id]

    def keep(self, ids: Container[str]) -> None:
        self._of = {id: key for id, key in self._of.items() if id in ids}


class Batch:
    """The requests of `runner`; `metadata` is the one that vLLM made for them."""

    def __init__(self, metadata: Any, runner: Any, keys: Keys) -> None:
        self.metadata = metadata
        asked = [SamplingRequest(runner, id, keys) for id in runner.input_batch.req_ids]
        self.key_B = np.array([a.key for a in asked], np.uint64)
        self.scale_B = np.array([a.scale for a in asked], np.float32)  # 1 / temperature; 0: the largest logit
        self.filtered_B: NDArray[np.bool_] = np.array([a.filtered for a in asked], bool)  # by min-p, top-k or top-p
        min_p_B = np.array([a.min_p for a in asked], np.float32)
        self.log_min_p_B: NDArray[np.float32] | None = None
        if min_p_B.any():
            self.log_min_p_B = np.log(min_p_B, where=min_p_B > 0, out=np.full_like(min_p_B, -np.inf))

    def __len__(self) -> int:
        return len(self.key_B)


class SamplingRequest:
    """`key`: of a request's noise. `scale`: 1 / temperature; with 0 there is no noise."""

    def __init__(self, runner: Any, id: str, keys: Keys) -> None:
        params = runner.requests[id].sampling_params
        ours = (params.extra_args or {}).get(KEY) or {}
        given = ours.get("key", params.seed)
        self.key = keys.of(id) if given is None else int(given) & MASK
        self.scale = 0.0 if params.temperature < GREEDY else 1.0 / params.temperature
        # vLLM refuses min-p of its own together with drafts.
        self.min_p = float(ours.get("min_p", 0.0)) or params.min_p
        top_k = 0 < params.top_k < runner.input_batch.vocab_size
        self.filtered = self.scale > 0 and bool(self.min_p > 0 or top_k or params.top_p < 1)
