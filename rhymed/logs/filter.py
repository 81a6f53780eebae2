"""Selects log entries by process, level, step and sample. Pure."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

from rhymed.errors import ConfigError
from rhymed.logs.read import Entry

RANKS = {"debug": 0, "info": 1, "warning": 2, "error": 3, "critical": 4}
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True)
class Filter:
    level: str = "debug"
    process: str = ""  # a name or a pattern with *
    step: int | None = None  # from 0
    sample: str = ""  # the complete id
    libraries: bool = True

    def matches(self, entry: Entry) -> bool:
        return (
            RANKS.get(entry.level, 1) >= RANKS[self.level]
            and (not self.process or fnmatchcase(entry.process, self.process))
            and (self.step is None or of_step(entry, self.step))
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


def of_step(entry: Entry, step: int) -> bool:
    """`step` counts from 0, as in fields and ids; sentences count from 1."""
    if entry.step is not None:
        return entry.step == step
    if any(id.startswith(f"{step}/") for id in entry.samples):
        return True
    return bool(re.search(rf"\bstep {step + 1}\b|(?<![\w/-]){step}/[0-9a-f]{{16}}/", entry.text))


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
