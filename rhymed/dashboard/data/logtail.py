"""The newest lines of a run's logs. Blocking. Reads a bounded part at the end of each file, however large it is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, BinaryIO

from rhymed.errors import MalformedMessage
from rhymed.logs.filter import RANKS, Filter
from rhymed.logs.read import LONGEST, Entry, Inode, LastStamp, Log, inode, logs, open_log, parse
from rhymed.text import readable

TAIL_BYTES = 1 << 20  # read at the end of a log, over its rotated files
MOST = 500  # lines in one answer
LONGEST_TEXT = 4000  # characters of a line's text and of its traceback


def tail(
    folder: Path, level: str = "info", process: str = "", words: str = "", *, libraries: bool = False
) -> dict[str, Any]:
    """Oldest first. `process`: a name or a pattern with `*`; `words`: text that a line contains; `libraries`: with
    the remarks of libraries, of which otherwise only errors are shown."""
    if level not in RANKS:
        raise MalformedMessage(f"level={level}: one of {', '.join(RANKS)} is expected")
    found = logs(folder / "logs")
    chosen = Filter(level=level, process=process, libraries=libraries)
    wanted = words.casefold()
    matching = [
        entry
        for log in found
        if not process or fnmatchcase(log.process, process)
        for entry in _newest(log)
        if chosen.matches(entry) and (not wanted or wanted in _text(entry).casefold())
    ]
    entries = sorted((entry for entry in matching if not chosen.hides(entry)), key=lambda entry: entry.t)
    return {
        "processes": sorted({log.process for log in found}),
        "total": len(entries),
        "hidden": len(matching) - len(entries),
        "lines": [_row(entry) for entry in entries[-MOST:]],
    }


def _newest(log: Log) -> Iterator[Entry]:
    """The entries of the log's last `TAIL_BYTES`. A file that is read in part begins with the rest of a line, which
    is left out."""
    last = LastStamp()
    with contextlib.ExitStack() as stack:
        for file, begin in _parts(log, stack):
            file.seek(begin)
            if begin:
                file.readline(LONGEST)
            for line in file:
                yield from parse(line, log, last)


def _parts(log: Log, stack: contextlib.ExitStack) -> list[tuple[BinaryIO, int]]:
    """Open files, oldest first, each with the byte to read from. The newest is opened first: a file that is rotated
    in the meantime is then met a second time and left out."""
    parts: list[tuple[BinaryIO, int]] = []
    seen: set[Inode] = set()
    left = TAIL_BYTES
    for path in reversed(log.files):
        if left <= 0:
            break
        with contextlib.suppress(OSError):
            file = stack.enter_context(open_log(path))
            if (place := inode(file)) not in seen:
                seen.add(place)
                size = file.seek(0, 2)
                parts.append((file, max(0, size - left)))
                left -= size
    return parts[::-1]


def _text(entry: Entry) -> str:
    """As it is shown."""
    text = f"{entry.text} {entry.error.message} {entry.error.traceback}" if entry.error else entry.text
    return readable(text)


def _row(entry: Entry) -> dict[str, Any]:
    trace = ""
    if entry.error is not None:
        trace = entry.error.traceback.strip() or f"{entry.error.type}: {entry.error.message}"
    return {
        "t": entry.t,
        "level": entry.level or "info",
        "process": entry.process,
        "text": readable(entry.text[:LONGEST_TEXT]),
        "trace": trace[-LONGEST_TEXT:],
    }
