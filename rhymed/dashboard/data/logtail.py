"""The newest lines of a run's logs. Blocking. Reads a bounded part at the end of each file, however large it is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rhymed.errors import MalformedMessage
from rhymed.logs.filter import RANKS, Filter
from rhymed.logs.read import LONGEST, Entry, LastStamp, Log, logs, open_log, parse
from rhymed.text import readable

TAIL_BYTES = 1 << 20  # read at the end of a process's newest file
MOST = 500  # lines in one answer
LONGEST_TEXT = 4000  # characters of a line's text and of its traceback


def tail(
    folder: Path, level: str = "info", process: str = "", words: str = "", *, libraries: bool = False
) -> dict[str, Any]:
    """Oldest first. `process`: a name or a pattern with `*`; `words`: text that a line contains; `libraries`: also
    what libraries remark, of which else only errors are shown."""
    if level not in RANKS:
        raise MalformedMessage(f"level={level}: one of {', '.join(RANKS)} is expected")
    found = logs(folder / "logs")
    chosen = Filter(level=level, process=process, libraries=libraries)
    wanted = words.casefold()
    matching = [
        entry
        for log in found
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
    """Of the part of the newest file that is read. Its first line may be the rest of one."""
    last = LastStamp()
    with contextlib.suppress(OSError), open_log(log.files[-1]) as file:
        begin = max(0, file.seek(0, 2) - TAIL_BYTES)
        file.seek(begin)
        if begin:
            file.readline(LONGEST)
        for line in file:
            yield from parse(line, log, last)


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
