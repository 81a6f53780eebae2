"""Follows the lines of a run's metrics.jsonl for one sink, and remembers how far it has come.

Invariant: the bookmark is past a line only when the sink has taken it. A sink that dies in between gets that one line
again. Of two processes that follow for the same sink, the second waits until the first has ended.
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

from rhymed import atomic
from rhymed_broker.telemetry import Line

LARGEST = 1 << 24  # bytes that are read at once


class Bookmark:
    """`<folder>/<sink>.json`: the id of the run there, and the first byte of metrics.jsonl that it has not taken."""

    def __init__(self, folder: Path, sink: str) -> None:
        """Holds the sink's lock until the process ends; waits for it."""
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = (folder / f"{sink}.lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._file = folder / f"{sink}.json"
        self.id, self.offset = secrets.token_hex(8), 0
        with contextlib.suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            kept = json.loads(self._file.read_text())
            self.id, self.offset = str(kept["id"]), int(kept["offset"])
        self._works = 0
        self.put(self.offset)

    def works(self) -> None:
        """All that there was is sent, by this process."""
        if not self._works:
            self._works = os.getpid()
            self.put(self.offset)

    def put(self, offset: int) -> None:
        """All before this byte is sent."""
        self.offset = offset
        atomic.write(self._file, json.dumps({"id": self.id, "offset": offset, "works": self._works}) + "\n")

    def close(self) -> None:
        self._lock.close()


def read_worker(folder: Path, sink: str) -> int:
    """The process that has sent all that there was; 0: none has, since one was started last."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return int(json.loads((folder / f"{sink}.json").read_text())["works"])
    return 0


def lines(file: Path, offset: int) -> Iterator[tuple[Line | None, int]]:
    """The whole lines from there on, each with the byte after it; None for one that is no row of metrics."""
    try:
        with file.open("rb") as opened:
            opened.seek(0, os.SEEK_END)
            opened.seek(offset if offset <= opened.tell() else 0)  # a shorter file is not the one that was read
            offset = opened.tell()
            for raw in opened.read(LARGEST).splitlines(keepends=True):
                if not raw.endswith(b"\n"):
                    return  # it is being written
                offset += len(raw)
                yield parse(raw), offset
    except FileNotFoundError:
        return


def parse(raw: bytes) -> Line | None:
    """A line of metrics.jsonl; what is no finite number is left out."""
    try:
        row = json.loads(raw)
        step, time = int(row.pop("step")), float(row.pop("time"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return Line(step, time, {name: float(value) for name, value in row.items() if _is_number(value)})


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
