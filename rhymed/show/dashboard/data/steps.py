"""The rows of `metrics.jsonl`, followed while they are written. Blocking: for a thread.

Every step has one row, the one written last. `serial` numbers rows in order of arrival, so that a client that has all
rows up to a serial gets the rest, including steps that were trained again. Unreadable lines are skipped.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from rhymed.core.run import metrics, timeline
from rhymed.core.run.timeline import Span
from rhymed.core.service.stopwatch import HEX
from rhymed.show import advice

MOST_BYTES = 8 << 20  # read at a time

COUNTED = (
    "step", "training/epoch", "reward/mean", "response_length/mean", "timing_s/rollout", "rollout/tokens",
    "rollout/spec_forwards", "rollout/spec_drafted", "rollout/spec_accepted", "rollout/spec_timed_s",
    "rollout/spec_saved_s", "rollout/spec_draft_s", "time", "timing_s/step", "store/used_bytes", "store/samples",
    *advice.METRICS,
)  # fmt: skip
"""Keys whose numbers are kept; the whole row is kept as JSON."""


@dataclass
class NumberedRow:
    serial: int
    json: msgspec.Raw


@dataclass
class StepRows:
    """Call `refresh` before reading."""

    file: Path
    serial: int = 0  # of the newest row
    counted: dict[int, dict[str, Any]] = field(default_factory=dict)  # step -> numbers
    _steps: dict[int, NumberedRow] = field(default_factory=dict)
    _evaluations: dict[int, NumberedRow] = field(default_factory=dict)
    _offset: int = 0
    _inode: int = 0
    _epochs: tuple[int, list[dict[str, Any]]] = (-1, [])

    def refresh(self) -> None:
        """Reads what was appended."""
        with contextlib.suppress(OSError), self.file.open("rb") as stream:
            stat = self.file.stat()
            if stat.st_size < self._offset or stat.st_ino != self._inode:  # another file: read it from the start
                self._steps.clear()
                self._evaluations.clear()
                self.counted.clear()
                self._offset, self._inode = 0, stat.st_ino
                self.serial += 1
            stream.seek(self._offset)
            while part := stream.read(MOST_BYTES):
                whole = part.rfind(b"\n") + 1
                if not whole and len(part) < MOST_BYTES:
                    break  # this line is still being written
                for line in part[: whole or len(part)].splitlines():
                    self._take(line)
                self._offset += whole or len(part)
                stream.seek(self._offset)

    def _take(self, line: bytes) -> None:
        try:
            row = json.loads(line)
            step = int(row["step"])
            encoded = msgspec.Raw(msgspec.json.encode(row))  # without NaN, which Python reads but JSON does not have
            counted = {key: _finite(row[key]) for key in COUNTED if key in row}
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return
        self.serial += 1
        numbered = NumberedRow(self.serial, encoded)
        if any(key.startswith("val/") for key in row):
            self._evaluations[step] = numbered
            return
        self._steps[step], self.counted[step] = numbered, counted

    @property
    def last(self) -> int:
        """The newest step that has a row; -1: none."""
        return max(self._steps, default=-1)

    def answer(self, since: int = 0) -> dict[str, Any]:
        """Rows with a serial after `since`; all of them if that is another process' serial."""
        since = since if since <= self.serial else 0
        return {
            "serial": self.serial,
            "steps": [row.json for _, row in sorted(self._steps.items()) if row.serial > since],
            "evaluations": [row.json for _, row in sorted(self._evaluations.items()) if row.serial > since],
            "epochs": self.epochs(),
        }

    def advice(self, config: Mapping[str, Any]) -> list[dict[str, str]]:
        rows = [self.counted[step] for step in sorted(self.counted)]
        return advice.advise(rows, config)

    def epochs(self) -> list[dict[str, Any]]:
        if self._epochs[0] != self.serial:
            self._epochs = self.serial, metrics.epochs([self.counted[step] for step in sorted(self.counted)])
        return self._epochs[1]

    def newest(self, key: str) -> float | None:
        """Of the newest step that has it."""
        for step in sorted(self.counted, reverse=True):
            if (value := self.counted[step].get(key)) is not None:
                return float(value)
        return None


def _finite(value: Any) -> Any:
    return value if isinstance(value, int | float) and math.isfinite(value) else None


# The timeline as the page draws it: what `rhymed.core.run.timeline` reads, with spans joined where there are too
# many.
#
# Pure apart from reading. Invariant: joined spans have the same seconds by activity, and no gap is closed.

MOST_SPANS = 20_000
MOST_EVENTS = 10_000  # the newest
GAP_S = 0.5  # a longer gap between a worker's spans is kept


def answer(folder: Path, since: float, most: int = MOST_SPANS) -> dict[str, Any]:
    rows = timeline.read(folder, since)
    return {"spans": joined(rows.spans, most), "events": rows.events[-MOST_EVENTS:], "activities": HEX}


def joined(spans: Sequence[Span], most: int = MOST_SPANS) -> list[Span]:
    """About `most` at most, ordered by time: neighbours become one, with the newest values of what they used."""
    together = -(-len(spans) // most)
    if together < 2:
        return list(spans)
    kept: list[Span] = []
    for own in timeline.by_worker(spans).values():
        size = 0  # of the part that the last one of `kept` is joined from
        for span in own:
            if 0 < size < together and span.t - span.s <= kept[-1].t + GAP_S:
                inside = Counter(kept[-1].inside) + Counter(span.inside)
                kept[-1] = msgspec.structs.replace(span, s=kept[-1].s + span.s, inside=inside)
                size += 1
            else:
                kept.append(span)
                size = 1
    return sorted(kept, key=lambda span: span.t)
