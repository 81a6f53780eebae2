"""All log files of a run as one stream of entries by time; files of any size, lines of any kind.

A line that is no JSON of ours (a library's, a crash's, half a line of a process that was killed) is an entry too: its
text is what it is, its time its own where it has one, else that of the line before it. Holds one line a file in
memory, and never a whole file. Knows nothing of what is looked for.
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

LONGEST = 8 << 20  # bytes of a line; a longer one is cut into such pieces
HEAD = b'{"t":"'
BEGUN = ""  # sorts before every time: not known
Inode = tuple[int, int]  # device, and the file's number there
NONE: Mapping[Inode, int] = {}

STAMP = re.compile(rb"\s*\[?(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:[.,](\d{1,3}))?")
LEVEL = re.compile(rb"\b(DEBUG|INFO|WARNING|ERROR|CRITICAL|Traceback|Error:|Fatal)\b")
NAMED = {b"Traceback": "error", b"Error:": "error", b"Fatal": "error"}


class Error(msgspec.Struct, frozen=True):
    type: str = ""
    message: str = ""
    traceback: str = ""


class Entry(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One line; of a foreign one only the first four fields are known."""

    t: str = BEGUN  # ISO, UTC
    level: str = "info"
    process: str = ""
    text: str = ""
    pid: int = 0
    logger: str = ""
    event: str = ""
    samples: list[str] = []
    step: int | None = None
    worker: str = ""
    tokens: int | list[int] | None = None  # these three: of `samples`, in their order
    accepted: list[int] | None = None
    rewards: list[float] | None = None
    error: Error | None = None
    raw: bytes = b""  # the line itself, where it is ours


class Log(NamedTuple):
    """The files of one process that hold one stream, oldest first."""

    process: str
    files: list[Path]
    foreign: bool  # what it printed, not what it logged


_decode = msgspec.json.Decoder(Entry).decode


def logs(*folders: Path) -> list[Log]:
    """What is in a run's folders of logs; empty where there is none.

    Links are left out: who may write logs may not be allowed to read what they would lead to.
    """
    found: dict[tuple[str, Path], list[tuple[int, Path]]] = {}
    for file in (file for folder in folders for file in folder.glob("*")):
        base, _, number = file.name.rpartition(".")
        name, turn = (base, int(number)) if number.isdecimal() and base.endswith(".log") else (file.name, 0)
        if name.endswith((".log", ".out")) and not file.is_symlink() and file.is_file():
            found.setdefault((name, file.parent), []).append((turn, file))
    return [
        Log(name[:-4], [file for _, file in sorted(found[name, folder], reverse=True)], name.endswith(".out"))
        for name, folder in sorted(found)
    ]


def merged(
    chosen: Iterable[Log], since: str = BEGUN, needle: bytes = b"", ends: Mapping[Inode, int] = NONE
) -> Iterator[Entry]:
    """By time, from `since` on. With `needle` only lines that contain these bytes, which is much faster.

    `ends`: inode -> byte, where a file is read no further.
    """
    streams = [entries(log, since, needle, ends) for log in chosen]
    yield from heapq.merge(*streams, key=lambda entry: entry.t)


def entries(log: Log, since: str = BEGUN, needle: bytes = b"", ends: Mapping[Inode, int] = NONE) -> Iterator[Entry]:
    """One process's, in the order in which they were written."""
    clock = Clock()
    opened = _open(log.files)
    try:
        for place, file in opened.items():
            if since:
                seek(file, since)
            for line in lines(file, ends.get(place)):
                if needle and needle not in line:
                    continue
                for entry in parse(line, log, clock):
                    if entry.t >= since:
                        yield entry
    finally:
        for file in opened.values():
            file.close()


def open_log(path: Path) -> BinaryIO:
    """Raises `OSError`, also for a link."""
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")


def inode(file: BinaryIO) -> Inode:
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino


def _open(files: Iterable[Path]) -> dict[Inode, BinaryIO]:
    """By inode. All at once: while they are read, they may be turned over. Empty ones cost nothing."""
    found: dict[Inode, BinaryIO] = {}
    for path in files:
        try:
            if path.stat().st_size:
                file = open_log(path)
                if found.setdefault(inode(file), file) is not file:
                    file.close()  # turned over since the last one
        except OSError:
            continue  # turned over, or taken away, since it was listed
    return found


def lines(file: BinaryIO, end: int | None = None) -> Iterator[bytes]:
    """Up to the byte `end`, which is where a line begins."""
    while (end is None or file.tell() < end) and (line := file.readline(LONGEST)):
        yield line


class Clock:
    """What time a line without one is of: that of the last line that had one."""

    def __init__(self) -> None:
        self.now, self.level = BEGUN, ""


def parse(line: bytes, log: Log, clock: Clock) -> Iterator[Entry]:
    """Entries of one line: two, where one was cut and the next one begins in its middle."""
    start = line.find(HEAD)
    if start < 0:
        yield from _foreign(line, log, clock)
        return
    if start:
        yield from _foreign(line[:start], log, clock)
    own = line[start:].strip()
    try:
        entry = _decode(own)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        again = own.find(HEAD, 1)
        yield from _foreign(own if again < 0 else own[:again], log, clock)
        if again >= 0:
            yield from parse(own[again:], log, clock)
        return
    entry.raw, entry.process = own, entry.process or log.process
    clock.now = entry.t
    yield entry


def _foreign(line: bytes, log: Log, clock: Clock) -> Iterator[Entry]:
    text = line.decode(errors="replace").strip("\r\n\0")
    if not text.strip():
        return
    stamp, level = STAMP.match(line), LEVEL.search(line, 0, 80)
    if stamp:
        clock.now = _utc(stamp) or clock.now
    if level:
        clock.level = NAMED.get(level[1], level[1].decode().lower())
    elif stamp or not (text[0].isspace() or log.foreign):
        clock.level = ""
    default = "warning" if log.foreign else "info"  # what goes past the logs is seldom good news
    yield Entry(t=clock.now or _written(log), level=clock.level or default, process=log.process, text=text)


def _utc(stamp: re.Match[bytes]) -> str:
    """Others stamp their lines with this machine's time."""
    try:
        local = time.strptime(f"{stamp[1].decode()} {stamp[2].decode()}", "%Y-%m-%d %H:%M:%S")
        utc = time.gmtime(time.mktime(local))
    except (ValueError, OverflowError):
        return BEGUN
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', utc)}.{(stamp[3] or b'').decode():0<3}Z"


def _written(log: Log) -> str:
    """When the file was written last."""
    try:
        seconds = log.files[-1].stat().st_mtime
    except OSError:
        return BEGUN
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.000Z"


def seek(file: BinaryIO, since: str) -> None:
    """To a line at most `LONGEST` before the first one of that time: its lines are sorted, but for a few."""
    low, high = 0, file.seek(0, 2)
    wanted = since.encode()
    while high - low > LONGEST:
        middle = (low + high) // 2
        found = _stamp_after(file, middle, high)
        if found is None or found >= wanted:
            high = middle
        else:
            low = middle
    file.seek(low)
    if low:
        file.readline(LONGEST)


def _stamp_after(file: BinaryIO, start: int, end: int) -> bytes | None:
    """Of the first line of ours that begins after `start`."""
    file.seek(start)
    file.readline(LONGEST)
    while file.tell() < end and (line := file.readline(LONGEST)):
        if line.startswith(HEAD):
            return line[len(HEAD) : len(HEAD) + 24]
    return None
