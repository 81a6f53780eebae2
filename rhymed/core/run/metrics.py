"""Writes a run's metrics: one JSON line per step, and TensorBoard events if that package is installed.

Blocking; call it off the event loop. Names are the field's, in slash groups (`reward/mean`, `timing_s/train`).
Exports to other systems (`rhymed_broker.telemetry`) read these lines.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from statistics import mean
from threading import Lock
from typing import IO, Any

from rhymed.core.atomic import is_named


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


# Totals of a run's metrics: over all steps, of drafting, and per epoch. Pure.
#
# A row is a step's line of `metrics.jsonl`, names as in docs/metrics.md; a value may be missing or None.

EDGE_STEPS = 5  # the means of this many first and last steps are compared

Row = dict[str, Any]


def totals(rows: Sequence[Row], elapsed_s: float) -> dict[str, float]:
    """Of the rows in order; unknown values are NaN. Steps whose samples were in the store already, after a resume,
    count neither for speed nor for times."""
    rewards = known(rows, "reward/mean")
    generated = [row for row in rows if row.get("rollout/tokens_per_s") != 0]
    edge = max(1, min(EDGE_STEPS, len(rewards) // 2))
    first = mean(rewards[:edge]) if rewards else float("nan")
    last = mean(rewards[-edge:]) if rewards else float("nan")

    def average(key: str, rows: Sequence[Row] = rows) -> float:
        values = known(rows, key)
        return mean(values) if values else float("nan")

    return {
        "steps": len(rows),
        "elapsed_s": elapsed_s,
        "edge": edge,
        "reward_first": first,
        "reward_last": last,
        "reward_gain": last - first,
        "tokens": sum(known(rows, "rollout/tokens")),
        "tokens_per_s": average("rollout/tokens_per_s", generated),
        "step_s": average("timing_s/step", generated),
        "rollout_s": average("timing_s/rollout", generated),
        "reward_s": average("timing_s/reward", generated),
        "train_s": average("timing_s/train", generated),
        "mismatch_kl": average("mismatch_kl/mean"),
        "dropped": sum(known(rows, "rollout/dropped")),
    }


def learned_nothing(rows: Sequence[Row]) -> bool:
    """Whether steps were trained and all of their samples had been dropped."""
    used = known(rows, "rollout/samples")
    return bool(used) and not any(used) and any(known(rows, "rollout/dropped"))


def unlearned(metrics: Mapping[str, Any]) -> str:
    """Why the policy learned nothing in a trained step, or less than it should, by its metrics; empty: it learned."""
    skipped, rejected = metrics.get("actor/skipped_updates"), metrics.get("actor/rejected")
    if skipped:
        return "updates were skipped, because loss or gradient was not finite"
    if metrics.get("critic/skipped_updates"):
        return "updates of the critic were skipped, because loss or gradient was not finite"
    if metrics.get("actor/samples") == 0:
        return "no sample was trained on"
    if rejected is not None and rejected >= 1:
        return "every token was left out by trainer.correction or trainer.off_policy_mask"
    if metrics.get("actor/grad_norm") != 0:
        return ""
    if metrics.get("reward/flat_groups") == 1:
        return "the gradient was 0, because all rewards of each group are equal"
    return "the gradient was 0"


def filtering(rows: Sequence[Row]) -> dict[str, float] | None:
    """Sums of the groups that dynamic sampling dropped for want of a signal. None: the run has none."""
    if not known(rows, "rollout/filtered_groups"):
        return None
    names = ("filtered_groups", "refilled_groups", "unreplaced_groups")
    return {name: sum(known(rows, f"rollout/{name}")) for name in names}


def drafting(rows: Sequence[Row]) -> dict[str, float | None] | None:
    """Sums of `rollout/spec_*`, without that prefix, and their ratios. None if the engine did not draft; a ratio is
    None if its divisor is 0."""
    if not known(rows, "rollout/spec_forwards"):
        return None
    names = ("forwards", "drafted", "accepted", "timed_s", "saved_s", "draft_s")
    sums = {name: sum(known(rows, f"rollout/spec_{name}")) for name in names}
    per_forward = _ratio(sums["accepted"], sums["forwards"])
    return {
        **sums,
        "accept_length": None if per_forward is None else 1 + per_forward,
        "accept_rate": _ratio(sums["accepted"], sums["drafted"]),
        "net_speedup": _ratio(sums["timed_s"] + sums["saved_s"], sums["timed_s"]),
    }


def epochs(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """In order. `reward`, `response_length` and `rollout_s` are means over the steps."""
    counted = [row for row in rows if row.get("training/epoch") is not None]
    return [_epoch(int(epoch), list(own)) for epoch, own in groupby(counted, lambda row: row["training/epoch"])]


def _epoch(epoch: int, rows: list[Row]) -> dict[str, Any]:
    drafted = drafting(rows) or {}
    seconds = known(rows, "timing_s/rollout")
    return {
        "epoch": epoch,
        "first_step": rows[0]["step"],
        "steps": len(rows),
        "reward": mean_of(known(rows, "reward/mean")),
        "response_length": mean_of(known(rows, "response_length/mean")),
        "accept_length": drafted.get("accept_length"),
        "accept_rate": drafted.get("accept_rate"),
        "net_speedup": drafted.get("net_speedup"),
        "rollout_s": mean_of(seconds),
        "tokens_per_s": _ratio(sum(known(rows, "rollout/tokens")), sum(seconds)),
    }


def known(rows: Sequence[Row], key: str) -> list[float]:
    return [row[key] for row in rows if row.get(key) is not None]


def mean_of(values: Sequence[float]) -> float | None:
    return mean(values) if values else None


def finite(value: float | None) -> float | None:
    """None instead of NaN."""
    return None if value is None or math.isnan(value) else value


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
