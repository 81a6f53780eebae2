"""The numbers of a step's tokens on their way to the store, in the background. Without torch.

They are for people, so they may be lost: in a crash, where the store has no room or does not answer, and where a step
is over before the earlier one is written. What is in the store is whole and names its version.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np

from rhymed.core.errors import RhymedError
from rhymed.core.messages import SampleId
from rhymed_store.client import StoreClient
from rhymed_store.codec.tokenstats import NAMES, Numbers

log = logging.getLogger(__name__)

MESSAGE_TOKENS = 1 << 20  # in one message, unless one sample is longer: other writes wait for its transaction


@dataclass(frozen=True)
class StepStats:
    """Rows as in `codec.tokenstats`; axis N: response tokens, sample after sample. NaN: unknown."""

    version: int  # of the policy before the step
    samples: list[SampleId]
    lengths: list[int]  # response tokens of each
    values: Numbers  # (4, N)

    def messages(self) -> Iterator[dict[SampleId, Numbers]]:
        """Those samples that the loss has seen, in parts of a message's size."""
        part: dict[SampleId, Numbers] = {}
        tokens = 0
        for sample, length, end in zip(self.samples, self.lengths, accumulate(self.lengths), strict=True):
            values = self.values[:, end - length : end]
            if not length or np.isnan(values[NAMES.index("logprob")]).all():
                continue
            if part and tokens + length > MESSAGE_TOKENS:
                yield part
                part, tokens = {}, 0
            part[sample] = values
            tokens += length
        if part:
            yield part


DEADLINE_S = 60.0  # of one message

Spawn: TypeAlias = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class Keeper:
    """At most one step at a time is in memory here.

    A trainer that begins at a checkpoint trains steps again, not always with numbers for each: what an earlier
    training left of the first step here and of later ones is removed before anything is written.
    """

    def __init__(self, store: StoreClient, spawn: Spawn) -> None:
        self._store, self._spawn = store, spawn
        self._writing: asyncio.Task[None] | None = None
        self._first: int | None = None  # step that was trained first here
        self._cleared = False  # of what an earlier training left

    def keep(self, version: int, step: StepStats | None) -> None:
        """Returns at once. `version`: of the policy before the step; `step`: None if it has no numbers."""
        if self._first is None:
            self._first = version
        if self._writing is not None and not self._writing.done():
            log.debug("tokens of step %d are left out: those of an earlier step are being written", version + 1)
        elif step is not None or not self._cleared:
            self._writing = self._spawn(self._write(self._first, version, step))

    async def written(self, limit_s: float) -> None:
        if self._writing is not None:
            await asyncio.wait([self._writing], timeout=limit_s)

    async def _write(self, first: int, version: int, step: StepStats | None) -> None:
        parts = step.messages() if step is not None else iter(())
        try:
            if not self._cleared:
                await self._store.put_token_stats(first, {}, begins=True, deadline_s=DEADLINE_S)
                self._cleared = True
            while (part := await asyncio.to_thread(next, parts, None)) is not None:
                await self._store.put_token_stats(version, part, begins=False, deadline_s=DEADLINE_S)
        except RhymedError as error:
            log.info("step %d: what training computed of its tokens is not kept: %s", version + 1, error)
