"""Chooses the engine. A module of its own, so that `base` imports no engine.

`DatasetEngine`, which samples nothing, is here as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rhymed.core.config import Config
from rhymed.core.messages import SampleId
from rhymed.core.service.stopwatch import Stopwatch
from rhymed.inputs.supervision import Answers
from rhymed_workers.engines.base import NO_VERSION, DraftReport, Engine, Output, ReadRows, Task, Throughput

if TYPE_CHECKING:
    from rhymed_store.client import StoredSample


def build_engine(config: Config, read_rows: ReadRows) -> Engine:
    """The engine that the configuration names; nothing is started yet. `read_rows`: of prompts, from the store."""
    if config.rollout.engine == "trace":
        from rhymed_workers.engines.trace import TraceEngine

        return TraceEngine(config.trace, config.rollout)
    if config.rollout.engine == "dataset":
        return DatasetEngine(config, read_rows)
    from rhymed.inputs.quantised import base_of
    from rhymed_workers.engines.vllm import VllmEngine

    return VllmEngine(config, base_of(config))


# The engine that answers with the dataset's own answers: responses for `trainer.algorithm = "sft"`.
#
# A task's response is the row's answer column, tokenised as a policy should have written it, with the end of the
# turn. Nothing is sampled, so a response has no log-probs: they are NaN, which the trainer takes for unknown. Weights
# are accepted and not read; a response carries the version that was loaded, so the staleness contract holds as for
# others.


class DatasetEngine:
    """`read_rows` reads rows from the store."""

    def __init__(self, config: Config, read_rows: ReadRows) -> None:
        self._config, self._read_rows = config, read_rows
        self._version = NO_VERSION
        self._running: set[SampleId] = set()
        self._cancelled: set[SampleId] = set()
        self._generated = 0
        self._throughput = Throughput()
        self._seconds = Stopwatch("idle")

    @property
    def version(self) -> int:
        return self._version

    async def open(self) -> None:
        self._answers = await asyncio.to_thread(Answers.load, self._config)

    async def close(self) -> None:
        """There is nothing to end."""

    async def generate(self, task: Task) -> Output:
        self._running.add(task.id)
        try:
            with self._seconds.during("decode"):
                (row,) = await self._read_rows([task.id.prompt])
                tokens = np.array(self._answers(f"prompt {task.id.prompt}", row), np.uint32)
            if task.id in self._cancelled:
                return Output(tokens[:0], np.zeros(0, np.float32), "abort", [])
        finally:
            self._running.discard(task.id)
            self._cancelled.discard(task.id)
        self._generated += len(tokens)
        return Output(tokens, np.full(len(tokens), np.nan, np.float32), "stop", [(self._version, len(tokens))])

    def cancel(self, id: SampleId) -> None:
        if id in self._running:
            self._cancelled.add(id)

    async def load(self, version: int, path: Path) -> dict[str, float]:
        self._version = version
        return {"load": 0.0}

    async def sleep(self) -> dict[str, float]:
        """There is no memory to free."""
        return {}

    async def remember(self, prompt: str, tokens: Sequence[int], past: Sequence[StoredSample]) -> None:
        """Nothing is drafted."""

    async def drafting(self, ids: Sequence[SampleId]) -> list[DraftReport]:
        return [DraftReport()] * len(ids)

    def progress(self) -> dict[SampleId, int]:
        return dict.fromkeys(self._running, 0)

    def written(self, starts: Mapping[SampleId, int]) -> dict[SampleId, NDArray[np.uint32]]:
        return {}

    def stats(self) -> dict[str, float]:
        return {
            "rollout/tokens_per_s": self._throughput.update(self._generated),
            "rollout/running": float(len(self._running)),
            "rollout/waiting": 0.0,
        }

    def seconds(self) -> Mapping[str, float]:
        return {name: seconds for name, seconds in self._seconds.read().items() if name != "idle"}
