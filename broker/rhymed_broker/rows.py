"""The run's lines of metrics, written one after the other and off everybody's way.

Metrics are for people: a row that cannot be written is dropped, with a warning and a line of trouble, and never holds
up or ends a run. A step has one row in a life of the broker, unless it is trained again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from rhymed.metrics import MetricsLog

log = logging.getLogger(__name__)


class Rows:
    def __init__(self, file: MetricsLog) -> None:
        self.trouble = ""  # why the last row was dropped; empty: it was not
        self._file = file
        self._waiting: asyncio.Queue[tuple[int, dict[str, float]]] = asyncio.Queue()
        self._last = -1  # trained step that has its row

    def set_back(self, position: int) -> None:
        """Steps from `position` on are trained again."""
        self._last = min(self._last, position - 1)

    def trained(self, step: int, metrics: dict[str, float]) -> None:
        """A step's row; said twice, it counts once."""
        if step > self._last and metrics:
            self._last = step
            self.put(step, metrics)

    def put(self, step: int, metrics: dict[str, float]) -> None:
        self._waiting.put_nowait((step, metrics))

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            step, metrics = await self._waiting.get()
            try:
                await asyncio.to_thread(self._file.write, step, metrics)
                self.trouble = ""
            except OSError as error:
                self.trouble = (
                    f"a row of metrics.jsonl (step {step} there) could not be written, and is dropped: {error}"
                )
                log.warning(self.trouble)
            self._waiting.task_done()

    async def flush(self, deadline_s: float) -> None:
        """Wait until all is written, but not longer than this."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._waiting.join(), deadline_s)

    async def close(self) -> None:
        with contextlib.suppress(OSError):  # it was told when the row was written
            await asyncio.to_thread(self._file.close)
