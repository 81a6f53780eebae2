"""Fits a run's head again after every epoch: a child process of the lowest priority, next to `rhymed run`.

Nothing waits for it, and nothing of the run depends on it: if it fails, is killed or comes too late, the head that is
there goes on drafting, and what it drafts changes the speed only. The head's file is replaced at once, and rollout
workers look for a new one whenever they load weights.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from asyncio.subprocess import DEVNULL
from collections.abc import Callable
from pathlib import Path

from rhymed.core.run.layout import RunLayout

LOOK_S = 2.0
TAIL_BYTES = 64 << 10


class Refit:
    def __init__(self, layout: RunLayout, report: Callable[[str], None]) -> None:
        self._layout, self._report = layout, report
        self._log = layout.log("drafter")
        self.fitted: int | None = None  # epoch of the newest step at the latest look; None: no look has found one

    async def follow(self) -> None:
        """Until it is cancelled; a fit that is under way is killed then."""
        while True:
            await asyncio.sleep(LOOK_S)
            epoch = await asyncio.to_thread(epoch_of, self._layout.metrics)
            if epoch is None or epoch == self.fitted:
                continue
            if self.fitted is not None:
                await self._fit(epoch)
            self.fitted = epoch

    async def _fit(self, epoch: int) -> None:
        """After the last step of the epoch before `epoch`."""
        command = [sys.executable, "-m", "rhymed", "drafter", "fit", str(self._layout.folder), "--spare"]
        try:
            with self._log.open("ab") as output:
                process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=output, stderr=output)
        except OSError as error:
            self._report(f"the head of epoch {epoch} is not fitted: {error}")
            return
        try:
            status = await process.wait()
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):  # it has just ended
                    process.kill()
        if status:
            self._report(f"the head of epoch {epoch} is not fitted, so the one before goes on: see {self._log}")


def epoch_of(metrics: Path) -> int | None:
    """Of the last trained step, from 0; None if there is none. Blocking."""
    try:
        with metrics.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        with contextlib.suppress(ValueError, TypeError, AttributeError):
            epoch = json.loads(line).get("training/epoch")
            if epoch is not None:
                return int(epoch)
    return None
