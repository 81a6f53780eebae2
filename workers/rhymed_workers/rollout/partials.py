"""Saves the tokens of running samples to the store, so that a worker's death costs only the last few tokens.

A sample's new tokens are saved when there are `MOST` of them, or after `rollout.save_every_s`; the worker that
continues the sample begins with them (`PutPartials`). What cannot be saved now is saved the next time, with what has
come since: nothing here delays an engine or ends a worker. If the store lacks a sample's earlier tokens, because
another worker wrote there meanwhile, it is saved again from its first token.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from rhymed.errors import RhymedError
from rhymed.messages import SampleId
from rhymed_store.client import StoreClient
from rhymed_workers.rollout.generation import ActiveSample, Generation

log = logging.getLogger(__name__)

MOST = 24  # unsaved tokens of one sample; about as many again arrive before the next check, at 250 per second
CHECK_S = 0.1
RETRY_S = 5.0  # after a failure: a full or ailing store must not get all unsaved tokens ten times per second
PUT_S = 10.0

Parts = Mapping[SampleId, tuple[int, Any]]
"""Sample -> (position of the first token, tokens)."""


class PartialSaver:
    """`active` returns the samples that the worker has now."""

    def __init__(
        self,
        every_s: float,
        store: StoreClient,
        generation: Generation,
        active: Callable[[], Iterable[ActiveSample]],
    ) -> None:
        self._every_s = every_s
        self._store, self._generation, self._active = store, generation, active
        self._failed = False  # the last attempt

    async def run(self) -> None:
        while True:
            await asyncio.sleep(RETRY_S if self._failed else min(CHECK_S, self._every_s / 2))
            await self.save(everything=False)

    async def save(self, *, everything: bool = True) -> None:
        """Save all unsaved tokens, or only those of samples that are due."""
        now = time.monotonic()
        unsaved = self._generation.unsaved(self._active())
        due = {sample: part for sample, part in unsaved.items() if everything or self._is_due(sample, len(part), now)}
        if not due:
            return
        parts = {sample.id: (sample.saved, part) for sample, part in due.items()}
        missing = await self._put(parts)
        if missing is None:
            return
        for sample, part in due.items():
            start = parts[sample.id][0]
            if sample.id in missing:
                sample.saved = 0
            elif sample.saved == start:  # else it was started again meanwhile
                sample.saved, sample.saved_at = start + len(part), now

    def _is_due(self, sample: ActiveSample, count: int, now: float) -> bool:
        return count >= MOST or now - max(sample.saved_at, sample.assigned_at) >= self._every_s

    async def _put(self, parts: Parts) -> Collection[SampleId] | None:
        """Ids whose earlier tokens the store does not have; None if the write failed."""
        try:
            missing = await self._store.put_partials(parts, deadline_s=PUT_S)
        except RhymedError as error:
            if not self._failed:
                log.warning("the tokens so far of %d samples are not saved: %s", len(parts), error)
            self._failed = True
            return None
        if self._failed:
            log.info("tokens of running samples are saved again")
        self._failed = False
        return missing
