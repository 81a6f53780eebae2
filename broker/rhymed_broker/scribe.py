"""Writes the diary into the run's folder, a little later and off everybody's way.

The timeline is for people: rows that cannot be written are dropped, with one warning, and never hold up or end a run.
"""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

from rhymed.timeline import Writer
from rhymed_broker.diary import Diary

log = logging.getLogger(__name__)

EVERY_S = 0.5


class Scribe:
    """`diary` may be written into at any time."""

    def __init__(self, folder: Path) -> None:
        self.diary = Diary(time.time(), time.monotonic())
        self.trouble = ""  # why rows were dropped; empty: they were not
        self._writer = Writer(folder)
        self._writing = asyncio.Lock()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            await self.flush()

    async def flush(self) -> None:
        """All that the diary has."""
        async with self._writing:
            rows = self.diary.drain()
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
