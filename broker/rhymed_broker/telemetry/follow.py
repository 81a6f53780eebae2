"""Follows a run's metrics.jsonl for one sink, and stores its position.

Invariant: the bookmark is after a line only if the sink has taken it; a sink that dies in between gets that line
again. A second process for the same sink waits until the first has ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from rhymed.core import atomic
from rhymed_broker.telemetry import MetricsRow

READ_BYTES = 1 << 24  # at once


class Bookmark:
    """`<folder>/<sink>.json`: the run's id in the sink, and the first byte of metrics.jsonl that it has not taken."""

    def __init__(self, folder: Path, sink: str) -> None:
        """Waits for the sink's lock, and holds it until the process ends."""
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = (folder / f"{sink}.lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._file = folder / f"{sink}.json"
        self.id, self.offset = secrets.token_hex(8), 0
        with contextlib.suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            kept = json.loads(self._file.read_text())
            self.id, self.offset = str(kept["id"]), int(kept["offset"])
        self._working_pid = 0
        self.put(self.offset)

    def mark_working(self) -> None:
        """This process has sent everything that there was."""
        if not self._working_pid:
            self._working_pid = os.getpid()
            self.put(self.offset)

    def put(self, offset: int) -> None:
        """Everything before this byte was sent."""
        self.offset = offset
        atomic.write(self._file, json.dumps({"id": self.id, "offset": offset, "works": self._working_pid}) + "\n")

    def close(self) -> None:
        self._lock.close()


def working_pid(folder: Path, sink: str) -> int:
    """The process that sent everything that there was; 0: none has since the last start."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return int(json.loads((folder / f"{sink}.json").read_text())["works"])
    return 0


def rows(file: Path, offset: int) -> Iterator[tuple[MetricsRow | None, int]]:
    """Complete lines from `offset` on, each with the byte after it; None for a line that is no row of metrics."""
    try:
        with file.open("rb") as opened:
            opened.seek(0, os.SEEK_END)
            opened.seek(offset if offset <= opened.tell() else 0)  # a shorter file was replaced
            offset = opened.tell()
            for raw in opened.read(READ_BYTES).splitlines(keepends=True):
                if not raw.endswith(b"\n"):
                    return  # this line is still being written
                offset += len(raw)
                yield parse(raw), offset
    except FileNotFoundError:
        return


def parse(raw: bytes) -> MetricsRow | None:
    """A line of metrics.jsonl; values that are no finite numbers are left out."""
    try:
        row = json.loads(raw)
        step, time = int(row.pop("step")), float(row.pop("time"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return MetricsRow(step, time, {name: float(value) for name, value in row.items() if _is_number(value)})


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
