"""What the broker writes, in order and off everybody's way: marks in the store's journal, lines of metrics.

Writes wait in a queue and are tried again while the store is away, up to a deadline; then the broker ends with an
error that says so. Losing the queue in a crash does no harm: a mark that is missing costs work, never a sample.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Any

from rhymed.errors import DeadlineExceeded, Overloaded, PeerGone, StoreError, StoreFull
from rhymed.service import retry

STORE_PATIENCE_S = 600.0  # a store that was killed is back sooner; one that is full may be given room

AWAY = (DeadlineExceeded, PeerGone, Overloaded, StoreFull, OSError)
"""What a store that will be back answers, and a full disk; anything else is a fault, and ends the broker."""

Write = Callable[[], Awaitable[Any]]


class Outbox:
    def __init__(self, patience_s: float = STORE_PATIENCE_S) -> None:
        self._writes: asyncio.Queue[tuple[str, Write]] = asyncio.Queue()
        self._patience_s = patience_s

    def put(self, what: str, write: Write) -> None:
        """`write` may be called several times."""
        self._writes.put_nowait((what, write))

    async def run(self) -> None:
        """Write until cancelled. Raises `StoreError` when the store stays away."""
        while True:
            what, write = await self._writes.get()
            await patiently(write, what, self._patience_s)
            self._writes.task_done()

    async def flush(self, deadline_s: float) -> bool:
        """Wait until all is written, but not longer than this. Whether it is."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._writes.join(), deadline_s)
            return True
        return False


async def patiently(attempt: Write, what: str, patience_s: float = STORE_PATIENCE_S) -> Any:
    """Try again while the store is away or full; raises `StoreError` after `patience_s`."""
    started = time.monotonic()
    last: Exception | None = None

    async def once() -> Any:
        nonlocal last
        try:
            return await attempt()
        except Exception as error:
            last = error
            raise

    try:
        async with asyncio.timeout(patience_s):
            return await retry(once, what=f"store ({what})", on=AWAY)
    except TimeoutError:
        waited = time.monotonic() - started
        raise StoreError(
            f"the store has not done '{what}' for {waited:.0f} s (last: {last}); is it running? start it again and"
            " resume the run: nothing is lost"
        ) from None
