"""What the uploader writes about itself into the run's folder, for the broker's lines that begin with `waits`."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import msgspec

from rhymed import atomic

STATUS = "remote.json"  # in the run's folder
SILENT_S = 600.0  # it writes far more often


class Status(msgspec.Struct, frozen=True, kw_only=True):
    at: float  # seconds since 1970
    trouble: str = ""
    checkpoint: int = 0  # steps of the newest one that is there whole
    backup: int = -1  # steps that were trained by the newest backup; -1: there is none
    ended: bool = False


def note(folder: Path, status: Status) -> None:
    """Errors are ignored: a full disk is reported elsewhere."""
    with contextlib.suppress(OSError):
        atomic.write(folder / STATUS, msgspec.json.encode(status) + b"\n")


def read(folder: Path) -> Status | None:
    try:
        return msgspec.json.decode((folder / STATUS).read_bytes(), type=Status)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


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
