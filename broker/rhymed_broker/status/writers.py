"""Writes the timeline and the metrics into the run's folder, in the background.

Invariant: a file that cannot be written never delays or ends the run. Its rows are dropped, with a warning.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from pathlib import Path

from rhymed.run.metrics import MetricsLog
from rhymed.run.timeline import Writer
from rhymed_broker.status.timeline import TimelineRecorder

log = logging.getLogger(__name__)

EVERY_S = 0.5


class TimelineWriter:
    """Writes what `timeline` has recorded."""

    def __init__(self, folder: Path) -> None:
        self.timeline = TimelineRecorder(time.time(), time.monotonic())
        self.trouble = ""  # why rows were dropped; empty: none were
        self._writer = Writer(folder)
        self._writing = asyncio.Lock()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            await self.flush()

    async def flush(self) -> None:
        """Everything recorded so far."""
        async with self._writing:
            rows = self.timeline.drain()
            if not rows:
                return
            try:
                await asyncio.to_thread(self._writer.write, rows)
                self.trouble = ""
            except OSError as error:
                if not self.trouble:
                    log.warning("the timeline could not be written, %d rows are dropped: %s", len(rows), error)
                self.trouble = f"the timeline could not be written, and is dropped: {error}"

    async def close(self) -> None:
        await self.flush()
        await asyncio.to_thread(self._writer.close)


class MetricsWriter:
    def __init__(self, file: MetricsLog) -> None:
        self.trouble = ""  # why the last row was dropped; empty: it was written
        self._file = file
        self._waiting: asyncio.Queue[tuple[int, dict[str, float]]] = asyncio.Queue()
        self._last = -1  # the last trained step with a row

    def roll_back(self, position: int) -> None:
        """Steps from `position` on are trained again."""
        self._last = min(self._last, position - 1)

    def trained(self, step: int, metrics: dict[str, float]) -> None:
        """A step's row; a repeated one is ignored."""
        if step > self._last and metrics:
            self._last = step
            self.put(step, metrics)

    def put(self, step: int, metrics: dict[str, float]) -> None:
        self._waiting.put_nowait((step, metrics))

    async def run(self) -> None:
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
        """Wait until all is written, up to the deadline."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._waiting.join(), deadline_s)

    async def close(self) -> None:
        with contextlib.suppress(OSError):  # reported when the row was written
            await asyncio.to_thread(self._file.close)
