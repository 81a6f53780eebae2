"""What the broker writes, in order and off everybody's way: marks in the store's journal, lines of metrics.

Attempts wait in a queue and are tried again while the store is away, up to a deadline; then the broker ends with an
error that says so. Losing the queue in a crash does no harm: a mark that is missing costs work, never a sample.
"""

from __future__ import annotations

import asyncio
import contextlib

from rhymed.service.retry import PATIENCE_S, Attempt, retry_store


class Outbox:
    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._writes: asyncio.Queue[tuple[str, Attempt]] = asyncio.Queue()
        self._patience_s = patience_s

    def put(self, what: str, write: Attempt) -> None:
        """`write` may be called several times."""
        self._writes.put_nowait((what, write))

    async def run(self) -> None:
        """Attempt until cancelled. Raises `StoreError` when the store stays away."""
        while True:
            what, write = await self._writes.get()
            await retry_store(write, what, self._patience_s)
            self._writes.task_done()

    async def flush(self, deadline_s: float) -> bool:
        """Wait until all is written, but not longer than this. Whether it is."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._writes.join(), deadline_s)
            return True
        return False
