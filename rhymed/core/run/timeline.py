"""The file `timeline.jsonl` of a run: the activities of every worker, and the run's events.

Owns the file's format: lines of JSON, spans and events, in the order of their times; at most two files, the older one
is `timeline.1.jsonl`. Reading never fails because of a file's content: incomplete and foreign lines are skipped. Does
not know who writes, or how often.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import IO, Annotated, Literal, NamedTuple, get_args

import msgspec

from rhymed.core.atomic import is_named
from rhymed.core.lines import first_after
from rhymed.core.text import duration

FILE, OLDER = "timeline.jsonl", "timeline.1.jsonl"
LIMIT_BYTES = 32 << 20  # of each of the two
LONGEST_LINE = 1 << 16  # bytes
DIGITS = re.compile("([0-9]{1,18})")

Time = Annotated[float, msgspec.Meta(ge=0, lt=1e12)]  # seconds
Role = Literal["rollout", "environment", "reward", "trainer"]
Kind = Literal["joined", "left", "lost", "rests", "trained", "evaluated", "begun", "finished"]


class Span(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename={"inside": "in"}):
    """The activities of a worker in the `s` seconds that end at `t`."""

    t: Time  # wall time, seconds since 1970
    worker: str
    role: Role
    s: Time
    inside: dict[str, Time]  # seconds by activity, see rhymed.core.service.stopwatch; they add up to `s`
    host: str = ""
    version: int | None = None  # policy version at `t`; of the trainer: trained steps
    tokens_per_s: float | None = None  # rollout only
    cpu: float | None = None  # processors in use at `t`, of the worker and its descendants
    ram_gib: float | None = None
    gpu: float | None = None  # utilization of its GPUs, the mean
    gpu_gib: float | None = None  # in use on its GPUs, summed
    gpu_celsius: float | None = None  # of its hottest GPU


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    t: Time
    event: Kind
    worker: str | None = None
    step: int | None = None  # trained: this one; evaluated: this policy version; begun: the first one
    text: str | None = None


FAILED = "run failed: "  # start of the text of `finished` if the run failed

INVALID = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
SPAN, EVENT = msgspec.json.Decoder(Span), msgspec.json.Decoder(Event)


class Timeline(NamedTuple):
    """Both lists are in the order of time."""

    spans: list[Span]
    events: list[Event]

    @property
    def finished(self) -> bool:
        """The run ended without a failure, and has not been resumed."""
        ends = [event for event in self.events if event.event in ("begun", "finished")]
        return bool(ends) and ends[-1].event == "finished" and not (ends[-1].text or "").startswith(FAILED)

    @property
    def last(self) -> float:
        """The newest time; 0 if there is none."""
        return max((each[-1].t for each in self if each), default=0.0)


def read(folder: Path, since: float = 0.0, newest_bytes: int = sys.maxsize) -> Timeline:
    """Everything after the time `since`, and of that the end, at most so many bytes; earlier parts are not read."""
    timeline = Timeline([], [])
    for name, most in ((OLDER, newest_bytes - _size(folder / FILE)), (FILE, newest_bytes)):
        try:
            with (folder / name).open("rb") as file:
                _seek(file, since, most)
                _read_lines(file, timeline, since)
        except OSError:
            continue  # missing, or just renamed by the writer
    return timeline


class Writer:
    """Appends lines. Blocking; raises `OSError` if a line could not be written."""

    def __init__(self, folder: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self._folder, self._limit = folder, limit_bytes
        self._file: IO[bytes] | None = None

    def write(self, rows: Sequence[Span | Event]) -> None:
        """In one write, so that readers see all of them or the first ones."""
        lines = b"".join(msgspec.json.encode(row) + b"\n" for row in rows)
        if self._file is not None and not is_named(self._file.fileno(), self._folder / FILE):
            self.close()  # somebody has removed it
        if self._file is None:
            self._file = self._open()
        if self._file.tell() + len(lines) > self._limit and self._file.tell():
            self.close()
            (self._folder / FILE).replace(self._folder / OLDER)
            self._file = self._open()
        try:
            if self._file.write(lines) < len(lines):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            self.close()  # the next write starts a new line
            raise

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> IO[bytes]:
        """At the start of a new line: an earlier writer may have died in the middle of one."""
        self._folder.mkdir(parents=True, exist_ok=True)
        file = (self._folder / FILE).open("ab+", buffering=0)
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
        return file


def _read_lines(file: IO[bytes], timeline: Timeline, since: float) -> None:
    """Adds the lines from the current position on; an incomplete last one may still be written."""
    for line in file:
        if not line.endswith(b"\n"):
            break
        row = _row(line)
        if row is None or row.t <= since:
            continue
        if isinstance(row, Span):
            timeline.spans.append(row)
        else:
            timeline.events.append(row)


def _row(line: bytes) -> Span | Event | None:
    """None: it is invalid."""
    if len(line) > LONGEST_LINE:
        return None
    try:
        return SPAN.decode(line)
    except INVALID:
        pass
    try:
        return EVENT.decode(line)
    except INVALID:
        return None


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _seek(file: IO[bytes], since: float, most: int) -> None:
    """To the first line after `since` that is not more than so many bytes before the end."""

    def is_before(line: bytes) -> bool | None:
        row = _row(line)
        return None if row is None else row.t <= since

    start, end = first_after(file, is_before, LONGEST_LINE) if since else 0, file.seek(0, os.SEEK_END)
    file.seek(max(start, end - max(0, most)))
    if start < end - most:
        file.readline()  # the rest of a line


def by_worker(spans: Iterable[Span]) -> dict[str, list[Span]]:
    """In the order of roles (rollout, environment, reward, trainer) and names."""
    by_key: dict[tuple[int, str], list[Span]] = {}
    for span in spans:
        by_key.setdefault((get_args(Role).index(span.role), span.worker), []).append(span)
    return {name: by_key[order, name] for order, name in sorted(by_key, key=lambda key: (key[0], _natural(key[1])))}


def _natural(name: str) -> list[int | str]:
    """`rollout-10` sorts after `rollout-9`."""
    return [int(part) if place % 2 else part for place, part in enumerate(DIGITS.split(name))]


# For how long a run has been working, and how long the rest will take, from its timeline.
#
# Owns both numbers for every screen and page. `Progress` is pure but for `read` and `read_end`, which add what is new
# in a file.

RECENT = 20  # steps whose mean time is the forecast: enough to include evaluations
PAUSE_S = 60.0  # a longer time without a record was a pause between two parts of a resumed run
END_BYTES = 1 << 20  # of a timeline: at least the newest steps of a few workers, and a few milliseconds to read
LATE_S = 5.0  # a record may be written this much later than one with a later time


class Times(NamedTuple):
    elapsed_s: float  # without the pauses of a run that was resumed
    eta_s: float | None  # until the last step is trained; None: not known, overdue, or nothing is left

    @property
    def left(self) -> str:
        """`about 12 min left`; empty: not known."""
        return "" if self.eta_s is None else f"about {duration(_rounded(self.eta_s))} left"


class Progress:
    """Records may be added twice, and slightly out of order."""

    def __init__(self) -> None:
        self._elapsed, self._last = 0.0, 0.0
        self._marks: dict[float, tuple[int, bool]] = {}  # time -> steps trained by then, and whether one just was
        self._is_over = False

    def read(self, folder: Path) -> None:
        """Adds what the timeline in this folder has gained since the last call. Blocking."""
        self.add(read(folder, self._seen))

    def read_end(self, folder: Path) -> None:
        """As `read`, with little to wait for: the time that is left can be known, the time that has passed not."""
        self.add(read(folder, self._seen, END_BYTES))

    @property
    def _seen(self) -> float:
        return max(0.0, self._last - LATE_S)

    def add(self, line: Timeline) -> None:
        for event in line.events:
            self._mark(event)
        for time in sorted(row.t for rows in line for row in rows):
            if time > self._last:
                self._elapsed += self._since_last(time)
                self._last = time

    def times(self, steps: int | None, now: float = 0.0) -> Times:
        """`steps`: of the whole run; None: unknown. `now`: seconds since 1970; 0: the run is not alive."""
        open_s = 0.0 if self._is_over else self._since_last(now)  # of a finished run nothing is added
        return Times(self._elapsed + open_s, self._eta(steps, now) if steps and now else None)

    def _since_last(self, time: float) -> float:
        """Seconds of work from the last record until this time."""
        return time - self._last if 0.0 < self._last < time <= self._last + PAUSE_S else 0.0

    def _mark(self, event: Event) -> None:
        if event.event == "begun" and event.step is not None:
            self._marks[event.t] = event.step, False
        elif event.event == "trained" and event.step is not None:
            self._marks[event.t] = event.step + 1, True
        if event.event in ("begun", "finished") and event.t > self._last:
            self._is_over = event.event == "finished"
        for time in sorted(self._marks)[: -2 * RECENT]:
            del self._marks[time]

    def _eta(self, steps: int, now: float) -> float | None:
        """The mean time of the newest steps, for each step that is left. The first one after a start warms up."""
        marks = sorted((time, *mark) for time, mark in self._marks.items())
        between = [
            (after - before) / (done - done_before)
            for (before, done_before, trained_before), (after, done, trained) in pairwise(marks)
            if trained_before and trained and done > done_before
        ]
        if self._is_over or not between or (left := steps - marks[-1][1]) <= 0:
            return None
        step_s = fmean(between[-RECENT:])
        rest = left * step_s - min(step_s, max(0.0, now - marks[-1][0]))
        return rest if rest > 0 else None  # the last step takes longer than expected


def _rounded(seconds: float) -> float:
    """To 5 s below two minutes, so that the text does not change with every look."""
    return max(5.0, 5.0 * round(seconds / 5)) if seconds < 120 else seconds
