"""The one thread that reads a run for the dashboard, so that the event loop never waits for a disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from rhymed.core.errors import Overloaded
from rhymed.show.dashboard.data.source import Source

MOST_WAITING = 64  # calls

Answer = TypeVar("Answer")


class SourceThread:
    def __init__(self, source: Source) -> None:
        self.source = source
        self._thread = ThreadPoolExecutor(1, "view")
        self._waiting = 0

    async def run(self, work: Callable[..., Answer], *arguments: Any) -> Answer:
        """Calls `work` in the thread. Raises `Overloaded` if too many calls wait."""
        if self._waiting >= MOST_WAITING:
            raise Overloaded("too many requests at a time: try again in a moment")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)
        finally:
            self._waiting -= 1

    def close(self) -> None:
        self._thread.submit(self.source.close)
        self._thread.shutdown()
