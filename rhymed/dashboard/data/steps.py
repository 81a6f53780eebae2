"""The rows of `metrics.jsonl`, followed while they are written. Blocking: for a thread.

Every step has one row, the one written last. `serial` numbers rows in order of arrival, so that a client that has all
rows up to a serial gets the rest, including steps that were trained again. Unreadable lines are skipped.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from rhymed.advice import rules
from rhymed.run import totals

MOST_BYTES = 8 << 20  # read at a time

COUNTED = (
    "step", "training/epoch", "reward/mean", "response_length/mean", "timing_s/rollout", "rollout/tokens",
    "rollout/spec_forwards", "rollout/spec_drafted", "rollout/spec_accepted", "rollout/spec_timed_s",
    "rollout/spec_saved_s", "rollout/spec_draft_s", "time", "timing_s/step", "store/used_bytes", "store/samples",
    *rules.METRICS,
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

    def refresh(self) -> bool:
        """Reads what was appended. True: there are new rows."""
        before = self.serial
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
        return self.serial > before

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

    def serial_of(self, step: int) -> int:
        """The serial of a client that has all rows up to this step."""
        return max((row.serial for at, row in self._steps.items() if at <= step), default=0)

    def answer(self, after: int = -1, *, since: int = 0) -> dict[str, Any]:
        """Rows of steps after `after` with a serial after `since`."""
        return {
            "steps": [
                self._steps[step].json
                for step in sorted(self._steps)
                if step > after and self._steps[step].serial > since
            ],
            "evaluations": [row.json for _, row in sorted(self._evaluations.items()) if row.serial > since],
            "epochs": self.epochs(),
        }

    def advice(self, config: Mapping[str, Any]) -> list[dict[str, str]]:
        rows = [self.counted[step] for step in sorted(self.counted)]
        return [advice._asdict() for advice in rules.advise(rows, config)]

    def epochs(self) -> list[dict[str, Any]]:
        if self._epochs[0] != self.serial:
            self._epochs = self.serial, totals.epochs([self.counted[step] for step in sorted(self.counted)])
        return self._epochs[1]

    def newest(self, key: str) -> float | None:
        """Of the newest step that has it."""
        for step in sorted(self.counted, reverse=True):
            if (value := self.counted[step].get(key)) is not None:
                return float(value)
        return None


def _finite(value: Any) -> Any:
    return value if isinstance(value, int | float) and math.isfinite(value) else None
