"""The state of a run: read from locks, from the record of its end and from its timeline, never guessed from times."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Literal, TypeAlias

from rhymed.messages import Queues
from rhymed.run import folder as runs
from rhymed.run import timeline
from rhymed.run.state import end_of
from rhymed.run.timeline import FAILED
from rhymed_store.shards.folders import any_open

Condition: TypeAlias = Literal[
    "running", "paused", "held", "finished", "failed", "interrupted", "stopped", "new", "waiting"
]
ALIVE = ("running", "paused", "held")
ENDED: dict[int, Condition] = {0: "finished", 130: "interrupted"}


def condition_of(folder: Path, last: float = 0.0, queues: Queues | None = None) -> tuple[Condition, str]:
    """The state, and why it failed. `last`: time of its newest trained step; the timeline before it is not read.
    `queues`: what its broker answers; None: nothing."""
    if queues is not None:
        return ("paused" if queues.paused else "running"), ""
    with contextlib.suppress(OSError):  # a folder of another user
        if runs.holder(folder) is not None:
            return "running", ""
        if any_open(folder / "store"):
            return "held", ""
    if (end := end_of(folder)) is not None and not _begun(folder, end.t):
        return ENDED.get(end.status, "failed"), end.why
    return _by_timeline(folder, last)


def _begun(folder: Path, since: float) -> bool:
    """It was continued without `rhymed run`."""
    return any(event.event == "begun" for event in timeline.read(folder, since).events)


def _by_timeline(folder: Path, last: float) -> tuple[Condition, str]:
    """For runs without `rhymed run`, of earlier releases, or killed."""
    line = timeline.read(folder, last)
    ends = [event for event in line.events if event.event in ("begun", "finished")]
    if not ends or ends[-1].event == "begun":
        return ("stopped" if ends or last else "new"), ""
    text = ends[-1].text or ""
    return ("failed", text.removeprefix(FAILED)) if text.startswith(FAILED) else ("finished", "")
