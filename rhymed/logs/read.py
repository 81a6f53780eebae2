"""All log files of a run as one stream of entries by time, for files of any size and lines of any kind.

A line that is not our JSON (from a library, a crash, or cut off by a kill) becomes an entry, too: with its own time
stamp if it has one, else with that of the line before. Holds one line per file in memory.
"""

from __future__ import annotations

import heapq
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from rhymed.logs.libraries import library_of, printed_by

LONGEST = 8 << 20  # bytes of a line; longer lines are split
HEAD = b'{"t":"'
UNKNOWN_TIME = ""  # sorts before every time
Inode = tuple[int, int]  # device and inode number
NONE: Mapping[Inode, int] = {}

STAMP = re.compile(rb"\s*\[?(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:[.,](\d{1,3}))?")
LEVEL = re.compile(rb"\b(DEBUG|INFO|WARNING|ERROR|CRITICAL|Traceback|Error:|Fatal)\b")
NAMED = {b"Traceback": "error", b"Error:": "error", b"Fatal": "error"}


class Error(msgspec.Struct, frozen=True):
    type: str = ""
    message: str = ""
    traceback: str = ""


class Entry(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One line; a foreign line has only the first five fields."""

    t: str = UNKNOWN_TIME  # ISO, UTC
    level: str = "info"
    process: str = ""
    text: str = ""
    library: str = ""  # that wrote it; empty: rhymed, the user's code, or unknown
    pid: int = 0
    logger: str = ""
    event: str = ""
    samples: list[str] = []
    step: int | None = None
    worker: str = ""
    tokens: int | list[int] | None = None  # these five are in the order of `samples`
    accepted: list[int] | None = None
    rewards: list[float] | None = None
    turns: list[int] | None = None  # numbers from 0; of a complete sample, how many
    calls: list[list[str]] | None = None  # of tools, with their seconds and errors
    error: Error | None = None
    raw: bytes = b""  # the line itself if it is our JSON


class Log(NamedTuple):
    """The files of one process that hold one stream, oldest first."""

    process: str
    files: list[Path]
    foreign: bool  # printed output instead of log lines


_decode = msgspec.json.Decoder(Entry).decode


def logs(*folders: Path) -> list[Log]:
    """The logs in these folders. Links are left out: they could lead to files that the writer of the logs may not
    read."""
    rotations: dict[tuple[str, Path], list[tuple[int, Path]]] = {}
    for file in (file for folder in folders for file in folder.glob("*")):
        base, _, number = file.name.rpartition(".")
        name, turn = (base, int(number)) if number.isdecimal() and base.endswith(".log") else (file.name, 0)
        if name.endswith((".log", ".out")) and not file.is_symlink() and file.is_file():
            rotations.setdefault((name, file.parent), []).append((turn, file))
    return [
        Log(name[:-4], [file for _, file in sorted(rotations[name, folder], reverse=True)], name.endswith(".out"))
        for name, folder in sorted(rotations)
    ]


def merged(
    chosen: Iterable[Log], since: str = UNKNOWN_TIME, needle: bytes = b"", ends: Mapping[Inode, int] = NONE
) -> Iterator[Entry]:
    """Entries by time, from `since` on. With `needle` only lines that contain these bytes, which is much faster.
    `ends`: inode -> byte at which reading of the file stops."""
    streams = [entries(log, since, needle, ends) for log in chosen]
    yield from heapq.merge(*streams, key=lambda entry: entry.t)


def entries(
    log: Log, since: str = UNKNOWN_TIME, needle: bytes = b"", ends: Mapping[Inode, int] = NONE
) -> Iterator[Entry]:
    """The entries of one process in the order of writing."""
    last = LastStamp()
    opened = _open(log.files)
    try:
        for place, file in opened.items():
            if since:
                seek(file, since)
            for line in lines(file, ends.get(place)):
                if needle and needle not in line:
                    continue
                for entry in parse(line, log, last):
                    if entry.t >= since:
                        yield entry
    finally:
        for file in opened.values():
            file.close()


def open_log(path: Path) -> BinaryIO:
    """Raises `OSError`, also for a symbolic link."""
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")


def inode(file: BinaryIO) -> Inode:
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino


def _open(files: Iterable[Path]) -> dict[Inode, BinaryIO]:
    """By inode. Opened all at once, because files may be rotated while they are read. Empty files are skipped."""
    opened: dict[Inode, BinaryIO] = {}
    for path in files:
        try:
            if path.stat().st_size:
                file = open_log(path)
                if opened.setdefault(inode(file), file) is not file:
                    file.close()  # rotated since the last one was opened
        except OSError:
            continue  # rotated or removed since it was listed
    return opened


def lines(file: BinaryIO, end: int | None = None) -> Iterator[bytes]:
    """Up to the byte `end`, at which a line begins."""
    while (end is None or file.tell() < end) and (line := file.readline(LONGEST)):
        yield line


class LastStamp:
    """Time, level and library of the last line that had them, for lines without."""

    def __init__(self) -> None:
        self.time, self.level, self.library = UNKNOWN_TIME, "", ""


def parse(line: bytes, log: Log, last: LastStamp) -> Iterator[Entry]:
    """The entries of one line: two if one was cut off and the next begins in its middle."""
    start = line.find(HEAD)
    if start < 0:
        yield from _foreign(line, log, last)
        return
    if start:
        yield from _foreign(line[:start], log, last)
    own = line[start:].strip()
    try:
        entry = _decode(own)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        again = own.find(HEAD, 1)
        yield from _foreign(own if again < 0 else own[:again], log, last)
        if again >= 0:
            yield from parse(own[again:], log, last)
        return
    entry.raw, entry.process, entry.library = own, entry.process or log.process, library_of(entry.logger)
    last.time = entry.t
    yield entry


def _foreign(line: bytes, log: Log, last: LastStamp) -> Iterator[Entry]:
    text = line.decode(errors="replace").strip("\r\n\0")
    if not text.strip():
        return
    stamp, level = STAMP.match(line), LEVEL.search(line, 0, 80)
    if stamp:
        last.time = _utc(stamp) or last.time
    if level:
        last.level = NAMED.get(level[1], level[1].decode().lower())
    elif stamp or not (text[0].isspace() or log.foreign):
        last.level = ""
    if not text[0].isspace():
        last.library = printed_by(text)
    default = "warning" if log.foreign else "info"  # output that bypasses the log is seldom good news
    yield Entry(
        t=last.time or _written(log),
        level=last.level or default,
        process=log.process,
        text=text,
        library=last.library,
    )


def _utc(stamp: re.Match[bytes]) -> str:
    """Foreign time stamps are local time."""
    try:
        local = time.strptime(f"{stamp[1].decode()} {stamp[2].decode()}", "%Y-%m-%d %H:%M:%S")
        utc = time.gmtime(time.mktime(local))
    except (ValueError, OverflowError):
        return UNKNOWN_TIME
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', utc)}.{(stamp[3] or b'').decode():0<3}Z"


def _written(log: Log) -> str:
    try:
        seconds = log.files[-1].stat().st_mtime
    except OSError:
        return UNKNOWN_TIME
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.000Z"


def seek(file: BinaryIO, since: str) -> None:
    """Move to a line at most `LONGEST` bytes before the first one of that time. Lines are almost sorted."""
    low, high = 0, file.seek(0, 2)
    wanted = since.encode()
    while high - low > LONGEST:
        middle = (low + high) // 2
        stamp = _stamp_after(file, middle, high)
        if stamp is None or stamp >= wanted:
            high = middle
        else:
            low = middle
    file.seek(low)
    if low:
        file.readline(LONGEST)


def _stamp_after(file: BinaryIO, start: int, end: int) -> bytes | None:
    """Time stamp of our first line that begins after `start`."""
    file.seek(start)
    file.readline(LONGEST)
    while file.tell() < end and (line := file.readline(LONGEST)):
        if line.startswith(HEAD):
            return line[len(HEAD) : len(HEAD) + 24]
    return None
