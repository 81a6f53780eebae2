"""Samples of a step from the store, in parts, with all that the learner reads of them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import NamedTuple

from rhymed.inputs.rows import Row
from rhymed.messages import SampleId
from rhymed.service.stopwatch import Stopwatch
from rhymed_store.client import StoreClient, StoredSample
from rhymed_workers.trainer.base import Learner
from rhymed_workers.trainer.samples import Progress

FETCH_S = 30.0  # for the samples of one request
FETCHED = 256  # samples in one request, so that a step of any size can be read in time


class Fetched(NamedTuple):
    samples: list[StoredSample]
    left_out: int
    seconds: float

    @property
    def metrics(self) -> dict[str, float]:
        return {"timing_s/fetch": self.seconds, "actor/left_out": float(self.left_out)}


class Fetch:
    def __init__(self, store: StoreClient, learner: Learner, seconds: Stopwatch) -> None:
        self._store, self._learner, self._seconds = store, learner, seconds

    async def samples(
        self, step: int, ids: Sequence[SampleId], progress: Progress = lambda done, total: None
    ) -> Fetched:
        """Those that the learner may train on in this step. Raises what the store's client raises."""
        started = time.perf_counter()
        with_logprobs, samples = self._learner.reads_logprobs, list[StoredSample]()
        for start in range(0, len(ids), FETCHED):
            progress(start, len(ids))
            part = ids[start : start + FETCHED]
            with self._seconds.during("load"):
                samples += await self._store.get_samples(
                    part, logprobs=with_logprobs, prompt_tokens=with_logprobs, deadline_s=FETCH_S
                )
        samples = self._learner.allowed(step, samples)
        left_out = len(ids) - len(samples)
        samples = await self._with_rows(samples) if self._learner.reads_rows else samples
        return Fetched(samples, left_out, time.perf_counter() - started)

    async def _with_rows(self, samples: list[StoredSample]) -> list[StoredSample]:
        prompts, rows = list(dict.fromkeys(sample.info.id.prompt for sample in samples)), dict[str, Row]()
        for start in range(0, len(prompts), FETCHED):
            part = prompts[start : start + FETCHED]
            with self._seconds.during("load"):
                rows |= zip(part, await self._store.get_prompts(part, deadline_s=FETCH_S), strict=True)
        return [dataclasses.replace(sample, row=rows[sample.info.id.prompt]) for sample in samples]
