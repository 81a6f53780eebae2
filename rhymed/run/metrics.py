"""Writes a run's metrics: one JSON line per step, and TensorBoard events if that package is installed.

Blocking; call it off the event loop. Names are the field's, in slash groups (`reward/mean`, `timing_s/train`).
Exports to other systems (`rhymed_broker.telemetry`) read these lines.
"""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from threading import Lock
from typing import IO, Any

from rhymed.atomic import is_named


class MetricsLog:
    """Append-only; may be reopened after a restart. The first write opens files and imports TensorBoard."""

    def __init__(self, jsonl: Path, tensorboard: Path | None = None) -> None:
        self._paths = jsonl, tensorboard
        self._jsonl: IO[str] | None = None
        self._events: Any = None
        self._lock = Lock()
        self._closed = False

    def write(self, step: int, metrics: dict[str, float]) -> None:
        """`step` counts trained steps from 0. A value that is not finite is written as null: JSON has no NaN."""
        with self._lock:
            if self._jsonl is not None and not self._is_there(self._jsonl):
                self._close()  # what is written from now on is in new files
            if self._jsonl is None:
                self._jsonl = self._open()
            self._write(self._jsonl, step, metrics)
            if self._closed:  # another thread closed it before this write
                self._close()

    def _write(self, jsonl: IO[str], step: int, metrics: dict[str, float]) -> None:
        finite = {key: value if math.isfinite(value) else None for key, value in sorted(metrics.items())}
        jsonl.write(json.dumps({"step": step, "time": round(time.time(), 3), **finite}) + "\n")
        if self._events is not None:
            self._events.add_event(_event(step, metrics))
            self._events.flush()

    def _is_there(self, jsonl: IO[str]) -> bool:
        """False: somebody has removed a file."""
        path, tensorboard = self._paths
        events = self._events is None or (tensorboard is not None and any(tensorboard.glob("events.out.*")))
        return events and is_named(jsonl.fileno(), path)

    def _open(self) -> IO[str]:
        jsonl, tensorboard = self._paths
        jsonl.parent.mkdir(parents=True, exist_ok=True)
        self._events = _event_writer(tensorboard) if tensorboard else None
        return jsonl.open("a", buffering=1)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._close()

    def _close(self) -> None:
        jsonl, events, self._jsonl, self._events = self._jsonl, self._events, None, None
        if events is not None:
            events.close()
        if jsonl is not None:
            jsonl.close()


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
