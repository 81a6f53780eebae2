"""Whether a run is alive, finished, or stopped, from its folder; and the record of how `rhymed run` ended it."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar

import msgspec

from rhymed.core import atomic
from rhymed.core.run import folder as runs
from rhymed.core.run import timeline
from rhymed.core.run.checkpoint import checkpoints_in
from rhymed.core.run.layout import RunLayout
from rhymed.core.run.timeline import Timeline

State: TypeAlias = Literal["running", "finished", "stopped"]

END = "end.json"

Content = TypeVar("Content", bound=msgspec.Struct)


class End(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The file `end.json`: written when `rhymed run` ends a run, removed when it starts one. A process that is killed
    leaves none."""

    t: float  # seconds since 1970
    status: int  # 0 finished, 1 failed, 2 failed and something has to be changed first, 130 interrupted
    why: str = ""  # of a failure
    steps: int = 0  # of the whole run; 0: unknown


def state_of(folder: Path, line: Timeline | None = None, *, ended: bool = False) -> State:
    """stopped: it can be resumed. `line`: its timeline, where it was read already; `ended`: the caller knows that the
    run is over although its folder is still locked."""
    if (line or timeline.read(folder)).finished:
        return "finished"
    with contextlib.suppress(OSError):  # a read-only folder cannot be locked, so its holder is unknown
        if not ended and runs.holder(folder) is not None:
            return "running"
    return "stopped"


def has_worked(layout: RunLayout) -> bool:
    """Whether its broker has begun to assign samples at any time: then it had a store."""
    return (
        any(event.event == "begun" for event in timeline.read(layout.folder).events)
        or bool(checkpoints_in(layout.checkpoints))
        or bool(runs.read_metrics(layout))
    )


def note_end(folder: Path, status: int, why: str, steps: int) -> None:
    _write(folder / END, End(t=time.time(), status=status, why=why, steps=steps))


def forget_end(folder: Path) -> None:
    with contextlib.suppress(OSError):
        (folder / END).unlink(missing_ok=True)


def end_of(folder: Path) -> End | None:
    """None: it is alive, was killed, or was not run by `rhymed run`."""
    return _read(folder / END, End)


def _write(file: Path, content: msgspec.Struct) -> None:
    """Errors are ignored: a full disk is reported elsewhere."""
    with contextlib.suppress(OSError):
        atomic.write(file, msgspec.json.encode(content) + b"\n")


def _read(file: Path, kind: type[Content]) -> Content | None:
    """None: there is none, or it cannot be understood."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


# What the uploader writes about itself into the run's folder, for the broker's lines that begin with `waits`.

STATUS = "remote.json"  # in the run's folder
SILENT_S = 600.0  # it writes far more often


class Status(msgspec.Struct, frozen=True, kw_only=True):
    at: float  # seconds since 1970
    trouble: str = ""
    checkpoint: int = 0  # steps of the newest one that is there whole
    backup: int = -1  # steps that were trained by the newest backup; -1: there is none
    ended: bool = False


def note(folder: Path, status: Status) -> None:
    _write(folder / STATUS, status)


def read(folder: Path) -> Status | None:
    return _read(folder / STATUS, Status)


class RemoteTrouble:
    """Of a run whose copy is not kept up; the run itself continues."""

    def __init__(self, folder: Path, remote: str) -> None:
        self._folder, self._remote, self._since = folder, remote, time.time()

    @property
    def trouble(self) -> str:
        """Empty: all is well, or there is no copy."""
        if not self._remote:
            return ""
        status = read(self._folder) or Status(at=self._since)  # perhaps none was started
        if status.ended or status.trouble:
            return "" if status.ended else status.trouble
        silent_s = time.time() - status.at
        return f"the uploader of run.remote has been silent for {silent_s:.0f} s" if silent_s > SILENT_S else ""
