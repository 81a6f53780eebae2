"""Whether a run is alive, finished, or stopped, from its folder."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Literal, TypeAlias

from rhymed.run import folder as runs
from rhymed.run import timeline
from rhymed.run.timeline import Timeline

State: TypeAlias = Literal["running", "finished", "stopped"]


def state_of(folder: Path, line: Timeline | None = None, *, ended: bool = False) -> State:
    """stopped: it can be resumed. `line`: its timeline, where it was read already; `ended`: the caller knows that the
    run is over although its folder is still locked."""
    if (line or timeline.read(folder)).finished:
        return "finished"
    with contextlib.suppress(OSError):  # a read-only folder cannot be locked, so its holder is unknown
        if not ended and runs.holder(folder) is not None:
            return "running"
    return "stopped"
