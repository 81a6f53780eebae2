"""Frees the memory of a sleeping vLLM engine, and gives it back. `Storage` runs inside vLLM's worker processes.

On a GPU this is vLLM's sleep mode: weights and KV cache lose their physical memory and keep their addresses. On a CPU
vLLM has no sleep mode: the KV cache's storage is freed and rebuilt, and the weights, which were repacked for the
processor, stay. Requests stay in the engine; their keys and values are computed again. Knows no versions.
"""

from __future__ import annotations

import functools
from typing import Any

KEEP_WEIGHTS, DROP_WEIGHTS = 1, 2
"""vLLM's levels of sleep: weights are copied to the host's memory, or dropped, since new ones will be loaded."""


class EngineMemory:
    """Of one AsyncLLM. `keep_weights`: they hold more than what a weights file has (scales, a head)."""

    def __init__(self, llm: Any, *, keep_weights: bool) -> None:
        self.asleep = False
        self._llm = llm
        self._level = KEEP_WEIGHTS if keep_weights else DROP_WEIGHTS

    @functools.cached_property
    def _cpu(self) -> bool:
        from vllm.platforms import current_platform

        return bool(current_platform.is_cpu())

    async def free(self) -> None:
        """The scheduler is paused before, and stays so. May be called again."""
        await self._llm.pause_generation(mode="keep", clear_cache=False)
        if not await self._llm.reset_prefix_cache(reset_running_requests=True):
            raise RuntimeError("running requests still hold keys and values")
        self.asleep = True
        if self._cpu:
            await self._llm.collective_rpc("free_kv_cache")
        else:
            await self._llm.sleep(level=self._level, mode="keep")

    async def wake_weights(self) -> None:
        """Before new weights are loaded. Without effect on an engine that is awake."""
        if self.asleep and not self._cpu:
            await self._llm.wake_up(tags=["weights"])

    async def wake_cache(self) -> None:
        """After new weights were loaded. Without effect on an engine that is awake."""
        if not self.asleep:
            return
        if self._cpu:
            await self._llm.collective_rpc("rebuild_kv_cache")
        else:
            await self._llm.wake_up(tags=["kv_cache"])
        self.asleep = False


class Storage:
    """Memory of the KV cache in one worker process, on a CPU. Views of the cache stay valid."""

    model_runner: Any

    def free_kv_cache(self) -> None:
        self._cache_bytes: dict[int, int] = getattr(self, "_cache_bytes", {})
        for number, storage in enumerate(self._storages()):
            if size := storage.nbytes():
                self._cache_bytes[number] = size
                storage.resize_(0)

    def rebuild_kv_cache(self) -> None:
        """Zeros, of the same sizes."""
        import torch

        for number, storage in enumerate(self._storages()):
            if not storage.nbytes():
                storage.resize_(self._cache_bytes[number])
                torch.empty(0, dtype=torch.uint8).set_(storage).zero_()

    def _storages(self) -> list[Any]:
        """Of all layers, each once, in the order of the layers."""
        found: dict[int, Any] = {}
        for cache in self.model_runner.kv_caches:
            for tensor in cache if isinstance(cache, list | tuple) else (cache,):
                storage = tensor.untyped_storage()
                found.setdefault(storage._cdata, storage)
        return list(found.values())
