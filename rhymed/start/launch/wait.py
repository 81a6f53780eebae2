"""Waits for the end of a run that no `rhymed run` supervises (containers, processes started by hand).

Owns when such a run is over; then it writes what `rhymed run` writes. A broker that does not answer may be
restarting; after a long silence the run counts as over.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path

from rhymed.core.config.load import load_run
from rhymed.core.messages import Queues
from rhymed.core.run.client import poll
from rhymed.core.run.layout import RunLayout, layout_of
from rhymed.show.dashboard.saved import write
from rhymed.show.summary import summary

POLL_S = 2.0
PATIENCE_S = 300.0  # without an answer
DONE_S = 60.0  # the same after the last step: the broker may have ended


def write_at_the_end(folder: Path, out: Path | None = None) -> str:
    """Wait, then write summary and report; returns text for people. Raises `ConfigError`."""
    config = load_run(folder)
    layout = layout_of(config)
    last = asyncio.run(over(layout))
    texts = []
    if last is not None:
        texts.append(summary(config, layout))
    texts.append(f"report   {write(folder, out / 'report.html' if out else None, ended=_done(last))}")
    return "\n".join(texts)


async def over(layout: RunLayout) -> Queues | None:
    """The last snapshot, when the run is over or the broker has been silent for too long; None: it never answered."""
    last: Queues | None = None
    answered = time.monotonic()
    async with contextlib.aclosing(poll(layout, POLL_S)) as snapshots:
        async for queues in snapshots:
            now = time.monotonic()
            last, answered = (queues, now) if queues is not None else (last, answered)
            if last is not None and last.finished:
                break
            if now - answered > (DONE_S if _done(last) else PATIENCE_S):
                break
    return last


def _done(last: Queues | None) -> bool:
    return last is not None and (last.finished or last.step >= last.steps > 0)
