"""How one event looks in a log file: a JSON object on a line of its own, which ties a sample's events together.

Whoever logs about samples gives them by `extra={"event": …, "samples": [ids]}`: one line for a batch. A sample's id
is the cause of all that happens to it, so its id is what its lines have in common. Invariant: a line is whole JSON in
UTF-8 without a line break, whatever it is about, and holds no secret that this process was given.
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

PLAIN = "%(asctime)s %(levelname)s %(name)s: %(message)s"
"""For people at a terminal."""

MOST = 64 << 10  # characters of a text or a traceback
FIELDS = ("event", "step", "worker", "tokens", "accepted", "rewards", "reason")
"""What a line may say beside its text, where its maker gave it; and `samples`."""

PATTERNS = re.compile(r"(?i)\b(bearer\s+|token=|api_key=|password=)[^\s&\"']+|\b(hf_|sk-|wandb_v1_)[A-Za-z0-9_-]{8,}")
NAMES = re.compile(r"(?i)(token|secret|password|api_?key)$")
SHORT = 8  # characters: what is shorter is no secret, and stands in many words


def secrets(environ: Mapping[str, str]) -> list[str]:
    """What must not be written down, by the names of the variables that hold it; the longest first."""
    found = {value for name, value in environ.items() if NAMES.search(name) and len(value) >= SHORT}
    return sorted(found, key=len, reverse=True)


class JsonLine(logging.Formatter):
    """One event as one line of JSON, without its line break."""

    def __init__(self, process: str, environ: Mapping[str, str] = os.environ) -> None:
        super().__init__()
        self._process = process
        self._secrets = secrets(environ)
        self._second = (-1, "")  # the one formatted last

    def format(self, record: logging.LogRecord) -> str:
        return self.encode(record).decode()

    def encode(self, record: logging.LogRecord) -> bytes:
        line: dict[str, Any] = {
            "t": self._time(record.created),
            "level": record.levelname.lower(),
            "process": self._process,
            "pid": record.process,
            "logger": record.name,
            "text": self.hide(_text(record))[:MOST],
        }
        given = record.__dict__
        for name in FIELDS:
            if name in given:
                value = given[name]
                line[name] = value if isinstance(value, int | float | list) else self.hide(str(value))
        if "samples" in given:
            line["samples"] = [str(id) for id in given["samples"]]
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = self._error(record.exc_info[1])
        return _encode(line)

    def hide(self, text: str) -> str:
        """The text without the secrets."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return PATTERNS.sub(lambda found: f"{found[1] or found[2]}***", text)

    def _time(self, seconds: float) -> str:
        """ISO, UTC, milliseconds."""
        whole = int(seconds)
        if whole != self._second[0]:
            self._second = (whole, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)))
        return f"{self._second[1]}.{int((seconds - whole) * 1000):03d}Z"

    def _error(self, error: BaseException) -> dict[str, str]:
        trace = self.hide("".join(traceback.format_exception(error)))
        return {"type": type(error).__name__, "message": self.hide(str(error))[:MOST], "traceback": trace[-MOST:]}


def _text(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # a call that does not fit its format is told all the same
        return f"{record.msg} {record.args}"


def _encode(line: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(line)
    except (UnicodeEncodeError, TypeError, ValueError):  # half a surrogate pair, or a strange value
        return json.dumps(line, default=str).encode()


def cause(event: str, samples: Iterable[object], **more: Any) -> dict[str, Any]:
    """`extra=` of a line about these samples."""
    return {"event": event, "samples": samples, **more}
