"""The broker's writes to the store, in order and in the background: marks in the journal, log-probs to delete.

A write is repeated while the store is away, up to a deadline; then the broker ends with that error. Losing the queue
in a crash is safe: a missing mark costs repeated work, never a sample.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from rhymed.messages import NO_SIGNAL, SampleId
from rhymed.service.logline import cause
from rhymed.service.retry import PATIENCE_S, Attempt, retry_store

log = logging.getLogger(__name__)


class Outbox:
    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._writes: asyncio.Queue[tuple[str, Attempt]] = asyncio.Queue()
        self._patience_s = patience_s

    def put(self, what: str, write: Attempt) -> None:
        """`write` may be called several times."""
        self._writes.put_nowait((what, write))

    async def run(self) -> None:
        """Until cancelled. Raises `StoreError` if the store stays away."""
        while True:
            what, write = await self._writes.get()
            await retry_store(write, what, self._patience_s)
            self._writes.task_done()

    async def flush(self, deadline_s: float) -> bool:
        """Wait until all is written, up to the deadline; returns whether it is."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._writes.join(), deadline_s)
            return True
        return False


def log_drop(ids: Sequence[SampleId], reason: str) -> None:
    level = logging.INFO if reason.startswith(NO_SIGNAL) else logging.WARNING
    fields = cause("dropped", ids, reason=reason)
    log.log(level, "%d samples dropped, first %s: %s", len(ids), ids[0], reason, extra=fields)
