"""The end of a run that no `rhymed run` supervises (containers, processes started by hand): somebody waits for it.

Owns when such a run is over, and what is written then: what `rhymed run` writes at its own end. A broker that does
not answer may be starting again; one that has been gone for long will not come back, and what there is is written.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path

from rhymed.config.load import load_run
from rhymed.errors import ConfigError
from rhymed.messages import Queues
from rhymed.report.facts import worked_s
from rhymed.report.summary import summary
from rhymed.report.write import write
from rhymed.run import timeline
from rhymed.run.client import poll
from rhymed.run.layout import RunLayout, layout_of

LOOK_S = 2.0
PATIENCE_S = 300.0  # without an answer
DONE_S = 60.0  # the same, when every step is trained: a broker that need not stay goes at the end


def write_at_the_end(folder: Path, out: Path | None = None) -> str:
    """Waits, then writes summary and report; returns what is to be said. Raises `ConfigError`."""
    config = load_run(folder)
    where = layout_of(config)
    if where.folder != folder.resolve():
        raise ConfigError(f"--wait: {folder} is a copy; the run's own folder is {where.folder}")
    last = asyncio.run(over(where))
    said = []
    written = _time(where.folder / "summary.json")
    if last is not None and _time(where.metrics) > written:  # else its hours would be counted twice
        said.append(summary(config, where, worked_s(timeline.read(where.folder), written)))
    said.append(f"report   {write(folder, out, ended=_done(last))}")
    return "\n".join(said)


async def over(where: RunLayout, patience_s: float = PATIENCE_S) -> Queues | None:
    """What the broker said last: that the run is over, or nothing after it for so long; None: it never spoke."""
    last: Queues | None = None
    heard = time.monotonic()
    async with contextlib.aclosing(poll(where, LOOK_S)) as told:
        async for queues in told:
            now = time.monotonic()
            last, heard = (queues, now) if queues is not None else (last, heard)
            if last is not None and last.finished:
                break
            if now - heard > (DONE_S if _done(last) else patience_s):
                break
    return last


def _done(last: Queues | None) -> bool:
    return last is not None and (last.finished or last.step >= last.steps > 0)


def _time(file: Path) -> float:
    """When it was written, in seconds since 1970; 0: never."""
    return file.stat().st_mtime if file.exists() else 0.0
