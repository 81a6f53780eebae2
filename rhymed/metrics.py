"""Writes a run's metrics: one JSON line a step, and TensorBoard events where that package is installed.

Blocking; call it off the event loop. Names are the field's, in slash groups (`reward/mean`, `timing_s/train`).
"""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any


class MetricsLog:
    """Append-only; safe to reopen after a restart."""

    def __init__(self, jsonl: Path, tensorboard: Path | None = None) -> None:
        jsonl.parent.mkdir(parents=True, exist_ok=True)
        self._jsonl = jsonl.open("a", buffering=1)
        self._events = _event_writer(tensorboard) if tensorboard else None

    def write(self, step: int, metrics: dict[str, float]) -> None:
        """`step` counts trained steps from 0. A value that is not finite is written as null: JSON has no NaN."""
        finite = {key: value if math.isfinite(value) else None for key, value in sorted(metrics.items())}
        self._jsonl.write(json.dumps({"step": step, "time": round(time.time(), 3), **finite}) + "\n")
        if self._events is not None:
            self._events.add_event(_event(step, metrics))
            self._events.flush()

    def close(self) -> None:
        self._jsonl.close()
        if self._events is not None:
            self._events.close()


def _event_writer(folder: Path) -> Any:
    try:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError:
        return None
    return EventFileWriter(str(folder))


def _event(step: int, metrics: dict[str, float]) -> Any:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    values = [Summary.Value(tag=key, simple_value=value) for key, value in metrics.items()]
    return Event(wall_time=time.time(), step=step, summary=Summary(value=values))
