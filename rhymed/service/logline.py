"""The format of log files: one JSON object per line, which names the samples that an event concerns.

What is not printable is written as an escape of JSON: a terminal shows the file safely, and programs read the same.
Events of samples are logged with `extra=cause(event, ids)`, one line per batch; the ids connect the lines of a
sample. Invariant: a line is valid JSON in UTF-8 without a line break, whatever was logged, and contains no secret of
this process's environment.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
import traceback
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from rhymed.printable import indented, json_visible

PLAIN = "%(asctime)s %(levelname)s %(name)s: %(message)s"
"""Format of a line on a terminal."""

MAX_CHARS = 64 << 10  # of a text or a traceback
FIELDS = ("event", "step", "worker", "tokens", "accepted", "rewards", "turns", "calls", "reason")
"""Optional fields of a line, from `extra`; `samples` is another."""

PATTERNS = re.compile(
    r"(?i)\b(bearer\s+|token=|api_key=|password=)[^\s&\"']+|\b(hf_|sk-|wandb_v1_)[A-Za-z0-9_-]{8,}"
    r"|(://)[^/@\s:]*:[^/@\s]+(?=@)"
)
NAMES = re.compile(r"(?i)(token|secret|password|api_?key)$")
SHORTEST = 8  # characters of a secret; shorter values occur in ordinary words


def secrets(environ: Mapping[str, str]) -> list[str]:
    """Values of variables whose names suggest a secret; the longest first."""
    values = {value for name, value in environ.items() if NAMES.search(name) and len(value) >= SHORTEST}
    return sorted(values, key=len, reverse=True)


class JsonLine(logging.Formatter):
    """Formats a record as one line of JSON, without the line break."""

    def __init__(self, process: str, environ: Mapping[str, str] = os.environ) -> None:
        super().__init__()
        self._process = process
        self._secrets = secrets(environ)
        self._second = (-1, "")  # the last one that was formatted

    def format(self, record: logging.LogRecord) -> str:
        return self.encode(record).decode()

    def encode(self, record: logging.LogRecord) -> bytes:
        line: dict[str, Any] = {
            "t": self._time(record.created),
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
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return PATTERNS.sub(lambda match: f"{match[1] or match[2] or match[3]}***", text)

    def _time(self, seconds: float) -> str:
        """ISO, UTC, milliseconds."""
        whole = int(seconds)
        if whole != self._second[0]:
            self._second = (whole, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)))
        return f"{self._second[1]}.{int((seconds - whole) * 1000):03d}Z"

    def _error(self, error: BaseException) -> dict[str, str]:
        trace = self.hide("".join(traceback.format_exception(error)))
        return {
            "type": type(error).__name__,
            "message": self.hide(str(error))[:MAX_CHARS],
            "traceback": trace[-MAX_CHARS:],
        }


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
