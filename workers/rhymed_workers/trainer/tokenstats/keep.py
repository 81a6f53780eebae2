"""Sends a step's numbers to the store, in the background.

They are for people, so they may be lost: in a crash, where the store has no room or does not answer, and where a step
is over before the earlier one is written. What is in the store is whole and names its version.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from rhymed.errors import RhymedError
from rhymed_store.client import StoreClient
from rhymed_workers.trainer.tokenstats.step import StepStats

log = logging.getLogger(__name__)

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
