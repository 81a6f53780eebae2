"""Writes the trainer's checkpoints on a thread of its own, one at a time, while the next steps are trained.

A checkpoint gets its name when all of it, of every rank, is durable. A crash before that leaves the one before as the
newest. Does not know what is in a checkpoint, nor whom it is reported to.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from rhymed.run import checkpoint
from rhymed.run.checkpoint import Checkpoint
from rhymed.run.folder import ids_of
from rhymed.run.layout import RunLayout

log = logging.getLogger(__name__)

MEASURE_S = 2.0  # between two looks at how much is written

Result = TypeVar("Result")
Finish = Callable[[], Mapping[str, str]]
"""Writes a copy; returns the digests of files that are known already, by name."""


class Checkpoints:
    """`report`: is given the steps in the oldest one that is kept, and in the newest. If newer ones are damaged, the
    run resumes from the oldest and needs what the store has of the later steps, log-probs included."""

    def __init__(self, layout: RunLayout, keep: int, report: Callable[[int, int], None]) -> None:
        self._folder, self._keep, self._report = layout.checkpoints, keep, report
        self._ids = ids_of(layout.folder)
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._lock = asyncio.Lock()  # of the copy in memory: there is one at a time
        self._bytes = 0  # written of the one that is being written
        self.newest = 0  # steps in the newest one

    def close(self) -> None:
        """One that is half written counts for nothing."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    @property
    def progress(self) -> object:
        """Changes while one is written; None if none is. A look at a disk that hangs changes nothing."""
        return self._bytes if self._lock.locked() else None

    def resume(self) -> Checkpoint | None:
        """The newest intact one. Blocking. Raises `CheckpointLost`, `RunMismatch`."""
        found = checkpoint.resume(self._folder, self._ids)
        self.newest = found.step if found else 0
        return found

    async def written(self) -> None:
        """Returns when none is being written."""
        async with self._lock:
            pass

    async def free(self) -> None:
        """As `written`; and no other is begun until `finish`."""
        await self._lock.acquire()

    def begin(self, steps: int, take: Callable[[Path], Finish]) -> Finish | None:
        """Let `take` copy what belongs into the folder; None if there is nothing to write. Blocking. After `free`.
        Raises `CheckpointError`."""
        part = checkpoint.begin(self._folder, steps)
        return None if part is None else take(part)

    async def finish(self, steps: int, write: Finish | None, waited_s: float) -> None:
        """Write the copy and report it. `waited_s`: that training waited for it. Raises `CheckpointError`."""
        started, run = time.perf_counter(), self._ids[-1] if self._ids else ""
        measuring = asyncio.get_running_loop().create_task(self._measure(steps))
        try:
            saved = await self._run(lambda: checkpoint.finish(self._folder, steps, write, self._keep, run))
        finally:
            measuring.cancel()
            self._lock.release()
        self.newest = saved.step
        seconds = time.perf_counter() - started
        log.info("checkpoint %s in %.1f s; training waited %.1f s", saved.folder, seconds + waited_s, waited_s)
        await self.report()

    async def _measure(self, steps: int) -> None:
        """Of all ranks' files, which lie in one folder."""
        while True:
            with contextlib.suppress(OSError):  # it has just got its name
                self._bytes = await asyncio.to_thread(checkpoint.written_bytes, self._folder, steps)
            await asyncio.sleep(MEASURE_S)

    async def report(self) -> None:
        kept = await self._run(lambda: checkpoint.checkpoints_in(self._folder))
        self._report(kept[0].step if kept else 0, self.newest)

    async def _run(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
