"""Log files: lines appended by one or several processes, bounded in size, readable at any moment.

Invariant: a line is one write at the file's end, so writers do not cut each other's. A full file is rotated: it
becomes `name.log.1`, older ones move up, and the oldest is removed. One writer does that, under a lock of the file;
the others notice that the name belongs to another file. A full disk loses lines, which are counted, and nothing else.
Does not know the content of a line.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from rhymed.core import secret
from rhymed.core.printable import indented, json_visible

# The format of log files: one JSON object per line, which names the samples that an event concerns.
#
# What is not printable is written as an escape of JSON: a terminal shows the file safely, and programs read the same.
# Events of samples are logged with `extra=cause(event, ids)`, one line per batch; the ids connect the lines of a
# sample. Invariant: a line is valid JSON in UTF-8 without a line break, whatever was logged, and contains no secret
# of this process's environment.

PLAIN = "%(asctime)s %(levelname)s %(name)s: %(message)s"
"""Format of a line on a terminal."""

MAX_CHARS = 64 << 10  # of a text or a traceback
FIELDS = ("event", "step", "worker", "tokens", "accepted", "rewards", "turns", "calls", "reason")
"""Optional fields of a line, from `extra`; `samples` is another."""


class JsonLine(logging.Formatter):
    """Formats a record as one line of JSON, without the line break."""

    def __init__(self, process: str, environ: Mapping[str, str] = os.environ) -> None:
        super().__init__()
        self._process = process
        self._secrets = secret.of_environment(environ)

    def format(self, record: logging.LogRecord) -> str:
        return self.encode(record).decode()

    def encode(self, record: logging.LogRecord) -> bytes:
        line: dict[str, Any] = {
            "t": _time(record.created),
            "level": record.levelname.lower(),
            "process": self._process,
            "pid": record.process,
            "logger": record.name,
            "text": self.hide(_text(record))[:MAX_CHARS],
        }
        extra = record.__dict__
        for name in FIELDS:
            if name in extra:
                value = extra[name]
                line[name] = value if isinstance(value, int | float | list) else self.hide(str(value))
        if "samples" in extra:
            line["samples"] = [str(id) for id in extra["samples"]]
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = self._error(record.exc_info[1])
        return _encode(line)

    def hide(self, text: str) -> str:
        return secret.hide(text, self._secrets)

    def _error(self, error: BaseException) -> dict[str, str]:
        trace = self.hide("".join(traceback.format_exception(error)))
        return {
            "type": type(error).__name__,
            "message": self.hide(str(error))[:MAX_CHARS],
            "traceback": trace[-MAX_CHARS:],
        }


def _time(seconds: float) -> str:
    """ISO, UTC, milliseconds."""
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{int(seconds % 1 * 1000):03d}Z"


def _text(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # arguments that do not fit the format
        return f"{record.msg} {record.args}"


def _encode(line: dict[str, Any]) -> bytes:
    try:
        found = msgspec.json.encode(line)
        return found if found.isascii() and b"\x7f" not in found else json_visible(found.decode()).encode()
    except (UnicodeEncodeError, TypeError, ValueError):  # half a surrogate pair, or a value that is not JSON
        return json_visible(json.dumps(line, default=str)).encode()


class PlainLine(logging.Formatter):
    """Formats a record for a terminal: `PLAIN`, its further lines indented, and nothing that steers the terminal."""

    def __init__(self) -> None:
        super().__init__(PLAIN)

    def format(self, record: logging.LogRecord) -> str:
        return indented(super().format(record))


def cause(event: str, samples: Iterable[object], **more: Any) -> dict[str, Any]:
    """For `extra=`: the event and the samples that a line is about."""
    return {"event": event, "samples": samples, **more}


MOST_BYTES = 32 << 20  # of one file
KEPT = 3  # files of a process, the one that is written included
PACKAGES = ("rhymed", "rhymed_broker", "rhymed_store", "rhymed_workers", "__main__")
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING}


class LogFile(logging.Handler):
    """The file of one process; `process` is its name in every line (default: the file's)."""

    def __init__(self, path: str | Path, process: str = "", *, most: int = MOST_BYTES, kept: int = KEPT) -> None:
        super().__init__()
        self.path = Path(os.path.abspath(path))
        self._most, self._kept = most, kept
        self._line = JsonLine(process or self.path.stem)
        self._file = -1
        self._inode = -1
        self._lost = 0  # lines that could not be written
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError):
            self._open()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if self._lost:
                self._append(self._line.encode(_lost_record(self._lost)))
                self._lost = 0
            self._append(self._line.encode(record))
        except OSError:
            self._lost += 1
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        with self.lock or contextlib.nullcontext():
            self._close_file()
        super().close()

    def _append(self, line: bytes) -> None:
        """Raises `OSError`."""
        try:
            now = os.stat(self.path)
        except FileNotFoundError:
            now = None
        if self._file < 0 or now is None or now.st_ino != self._inode:
            self._open()
        elif now.st_size >= self._most:
            self._rotate()
        left = memoryview(line + b"\n")
        while left:
            left = left[os.write(self._file, left) :]

    def _open(self) -> None:
        self._close_file()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        stat = os.fstat(self._file)
        self._inode = stat.st_ino
        if stat.st_size and os.pread(self._file, 1, stat.st_size - 1) != b"\n":
            os.write(self._file, b"\n")  # an earlier writer was killed in the middle of a line

    def _close_file(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _rotate(self) -> None:
        """If another writer rotates just now, this line is the old file's last."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return
        if os.stat(self.path).st_ino == self._inode:
            for number in range(self._kept - 1, 0, -1):
                with contextlib.suppress(FileNotFoundError):
                    os.replace(rotated(self.path, number - 1), rotated(self.path, number))
        self._open()


def rotated(path: Path, number: int) -> Path:
    """Where a log is after this many rotations."""
    return path.with_name(f"{path.name}.{number}") if number else path


def configure(log_file: Path | None, level: str = "info", *, console: bool = False) -> None:
    """Log to the file as JSON; and, with `console` or without a file, to stderr as text."""
    handlers: list[logging.Handler] = [LogFile(log_file)] if log_file is not None else []
    if console or log_file is None:
        out = logging.StreamHandler()
        out.setFormatter(PlainLine())
        if log_file is not None:
            out.addFilter(is_for_console)
        handlers.append(out)
    logging.basicConfig(level=max(LEVELS[level], logging.INFO), handlers=handlers, force=True)
    for name in PACKAGES:  # other packages log from INFO on
        logging.getLogger(name).setLevel(LEVELS[level])


def is_for_console(record: logging.LogRecord) -> bool:
    """The ordinary events of samples are in the file only."""
    return record.levelno > logging.INFO or not hasattr(record, "samples")


def has_console() -> bool:
    """A person started this process in a terminal, or RHYMED_CONSOLE is set, as in containers."""
    started_by_shell = os.getpgrp() == os.getpid()  # shells start every command in a process group of its own
    watched = (started_by_shell and sys.stderr.isatty()) or bool(os.environ.get("RHYMED_CONSOLE"))
    return watched and not os.environ.get("RHYMED_SUPERVISED")


def handler_for_vllm(log_file: Path) -> dict[str, object]:
    """A handler for `logging.config.dictConfig`: vLLM's lines, those of its child processes too."""
    return {"()": "rhymed.core.service.logfile.LogFile", "path": str(log_file)}


def current_file() -> Path | None:
    return next((one.path for one in logging.getLogger().handlers if isinstance(one, LogFile)), None)


def _lost_record(count: int) -> logging.LogRecord:
    text = f"{count} lines before this one could not be written"
    return logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, (), None)
