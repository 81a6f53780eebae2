"""All log files of a run as one stream of entries by time, for files of any size and lines of any kind.

A line that is not our JSON (from a library, a crash, or cut off by a kill) becomes an entry, too: with its own time
stamp if it has one, else with that of the line before. Holds one line per file in memory.

`library_of` recognizes remarks of libraries, and `Filter` selects entries.
"""

from __future__ import annotations

import datetime
import heapq
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from rhymed.core.errors import ConfigError
from rhymed.core.lines import first_after
from rhymed.core.printable import line, visible
from rhymed.core.text import readable

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
    stamped, level = STAMP.match(line), LEVEL.search(line, 0, 80)
    if stamped:
        last.time = _utc(stamped) or last.time
    if level:
        last.level = NAMED.get(level[1], level[1].decode().lower())
    elif stamped or not (text[0].isspace() or log.foreign):
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


def _utc(found: re.Match[bytes]) -> str:
    """Foreign time stamps are local time."""
    day, clock, fraction = (part.decode() for part in found.groups(b""))
    try:
        return stamp(datetime.datetime.fromisoformat(f"{day}T{clock}.{fraction:0<3}"))
    except (ValueError, OverflowError):
        return UNKNOWN_TIME


def _written(log: Log) -> str:
    try:
        return stamp(datetime.datetime.fromtimestamp(int(log.files[-1].stat().st_mtime)))
    except OSError:
        return UNKNOWN_TIME


def seek(file: BinaryIO, since: str) -> None:
    """Move to a line at most `LONGEST` bytes before the first one of that time. Lines are almost sorted."""
    wanted = since.encode()

    def is_before(line: bytes) -> bool | None:
        return line[len(HEAD) : len(HEAD) + 24] < wanted if line.startswith(HEAD) else None

    file.seek(first_after(file, is_before, LONGEST))


# Which entries are remarks of libraries (vLLM, torch, …), of which a healthy run has dozens. Pure.
#
# Only known libraries count: what a reward function logs, under whatever name, is the user's own.

LIBRARIES = frozenset({
    "PIL", "accelerate", "aiohttp", "asyncio", "bitsandbytes", "compressed_tensors", "datasets", "deepspeed",
    "fastapi", "filelock", "flashinfer", "fsspec", "httpcore", "httpx", "huggingface_hub", "jax", "kernels",
    "matplotlib", "mlflow", "numexpr", "openai", "opentelemetry", "peft", "py.warnings", "ray", "safetensors",
    "sentence_transformers", "tensorboard", "tensorflow", "tokenizers", "torch", "torchao", "torchvision",
    "trackio", "transformers", "triton", "urllib3", "uvicorn", "vllm", "wandb", "xformers",
})  # fmt: skip
"""Names of loggers, or of the part before their first dot."""

PRINTED = (
    (re.compile(r"\S*/(?:site|dist)-packages/(\w+)\S*:\d+: \w*Warning: "), ""),  # the library is in the path
    (re.compile(r"(?:\(\S+ pid=\d+\) )?(?:DEBUG|INFO|WARNING) \d\d-\d\d \d\d:\d\d:\d\d \["), "vllm"),
    (re.compile(r"\[[WI]\d{4} \d\d:\d\d:\d\d\.\d+ \S+:\d+\] "), "torch"),
    (re.compile(r"\[Gloo\] "), "torch"),
    (re.compile(r"Triton "), "triton"),
)
"""Beginnings of lines that libraries print instead of logging them, but for errors -> library."""


def library_of(logger: str) -> str:
    """Empty: none that is known."""
    first = logger.partition(".")[0]
    return logger if logger in LIBRARIES else first if first in LIBRARIES else ""


def printed_by(line: str) -> str:
    """The library that printed the line; empty: unknown."""
    found = ((start.match(line), name) for start, name in PRINTED)
    return next((name or match[1] for match, name in found if match), "")


# Selects log entries by process, level and sample. Pure.

RANKS = {"debug": 0, "info": 1, "warning": 2, "error": 3, "critical": 4}
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True)
class Filter:
    level: str = "debug"
    process: str = ""  # a name or a pattern with *
    sample: str = ""  # the complete id
    libraries: bool = True

    def matches(self, entry: Entry) -> bool:
        return (
            RANKS.get(entry.level, 1) >= RANKS[self.level]
            and (not self.process or fnmatchcase(entry.process, self.process))
            and (not self.sample or about(entry, self.sample))
        )

    def hides(self, entry: Entry) -> bool:
        """Is it a remark of a library that is left out? Errors are shown from libraries too."""
        noise = bool(entry.library) and RANKS.get(entry.level, 1) < RANKS["error"]
        return noise and not self.libraries and not self.sample

    @property
    def needle(self) -> bytes:
        """Bytes that every matching line contains."""
        return self.sample.encode()


def about(entry: Entry, sample: str) -> bool:
    """Does the entry name this sample, in a field or in its text?"""
    if sample in entry.samples:
        return True
    return bool(re.search(rf"(?<![\w/-]){re.escape(sample)}(?!\d)", entry.text))


def since_stamp(text: str, now: datetime.datetime) -> str:
    """The time stamp for `10m`, `2h` (before `now`) or an ISO time. Raises `ConfigError`."""
    duration = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    try:
        if duration:
            moment = now - datetime.timedelta(seconds=float(duration[1]) * UNITS[duration[2]])
        else:
            moment = datetime.datetime.fromisoformat(text.strip())
    except (ValueError, OverflowError):
        raise ConfigError(f"--since {text}: write 30s, 10m, 2h, 1d, or a time like 2026-01-31T14:05") from None
    return stamp(moment)


def stamp(moment: datetime.datetime) -> str:
    """A time stamp as entries have it. A time without a zone is local time."""
    utc = moment.astimezone(datetime.UTC)
    return f"{utc:%Y-%m-%dT%H:%M:%S}.{utc.microsecond // 1000:03d}Z"


# Follows files that are still written. Files may appear and be rotated: they are known by their inodes.
#
# A line counts once it has its line break. The entries of one `poll` are sorted by time. Has no clock of its own.
#
# `Follower` reads them, and `Formatter` writes entries for people.


class Follower:
    """Each `poll` returns the entries since the last one, the first since construction. `begins`: by inode, the byte
    at which it starts to follow."""

    def __init__(self, *folders: Path) -> None:
        self._folders = folders
        self.begins: dict[Inode, int] = {}
        for log in logs(*folders):
            for place, file in _open(log.files).items():
                with file:
                    self.begins[place] = _last_complete(file)
        self._ends = dict(self.begins)  # of what was read
        self._last: dict[Path, LastStamp] = {}  # by the newest file of a log

    def poll(self) -> list[Entry]:
        entries = [entry for log in logs(*self._folders) for path in log.files for entry in self._new_in(log, path)]
        return sorted(entries, key=lambda entry: entry.t)

    def _new_in(self, log: Log, path: Path) -> Iterator[Entry]:
        try:
            status = path.stat()
            if status.st_size == self._ends.get((status.st_dev, status.st_ino), 0):
                return
            file = open_log(path)
        except OSError:  # rotated or removed since it was listed
            return
        with file:
            place = inode(file)
            end = self._ends.get(place, 0)
            file.seek(end if end <= file.seek(0, 2) else 0)  # it was truncated
            while (line := file.readline(LONGEST)) and (line.endswith(b"\n") or len(line) == LONGEST):
                self._ends[place] = file.tell()
                yield from parse(line, log, self._last.setdefault(log.files[-1], LastStamp()))


def _last_complete(file: BinaryIO) -> int:
    """Where an incomplete last line begins, else the end of the file."""
    end = file.seek(0, 2)
    start = max(0, end - LONGEST)
    file.seek(start)
    return start + file.read(end - start).rfind(b"\n") + 1


# Formats entries for people: time of day, process, level unless it is info, text. Pure.
#
# Times are local; a line with the date marks each new day. Control characters are made visible.

COLOURS = {"debug": "2", "warning": "33", "error": "31", "critical": "1;31"}
"""ANSI, by level."""

WIDE = 11  # characters of the process column


class Formatter:
    """`line` returns the text for an entry, with line breaks. Remembers the day."""

    def __init__(self, *, colours: bool, zone: datetime.tzinfo | None = None) -> None:
        self._colours, self._zone = colours, zone
        self._day = ""

    def line(self, entry: Entry) -> str:
        moment = _moment(entry.t, self._zone)
        head = f"{moment:%H:%M:%S}.{moment.microsecond // 1000:03d}" if moment else " " * 12
        mark = "" if entry.level in ("info", "") else f"{line(entry.level).upper()} "
        text = readable(visible(entry.text)).replace("\n", "\n" + " " * 13)
        shown = f"{head} {line(entry.process):<{WIDE}} {mark}{text}"
        if entry.error is not None:
            message = "" if entry.error.message and entry.error.message in entry.text else entry.error.message
            trace = entry.error.traceback.rstrip() or f"{entry.error.type}: {message}"
            shown += "".join(f"\n{' ' * 13}{row}" for row in visible(trace).splitlines())
        return f"{self._date(moment)}{self._paint(shown, entry.level)}\n"

    def _date(self, moment: datetime.datetime | None) -> str:
        day = f"{moment:%Y-%m-%d}" if moment else self._day
        if day == self._day:
            return ""
        self._day = day
        return self._paint(f"-- {day}", "debug") + "\n"

    def _paint(self, text: str, level: str) -> str:
        code = COLOURS.get(level)
        return f"\033[{code}m{text}\033[0m" if self._colours and code else text


def _moment(t: str, zone: datetime.tzinfo | None) -> datetime.datetime | None:
    try:
        return datetime.datetime.fromisoformat(t).astimezone(zone)
    except ValueError:
        return None
