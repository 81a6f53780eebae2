"""Rows, spans and snapshots of the runs in the dashboard's tests."""

from __future__ import annotations

from typing import Any

from rhymed.core.messages import Holding, Queues, SampleId, WorkerRow
from rhymed.core.run.timeline import Span
from tests.records.history.folders import APPLES

NOW = 1_700_000_000.0


def row(step: int, **more: float) -> dict[str, Any]:
    return {
        "step": step,
        "time": NOW + step,
        "training/epoch": step // 2,
        "reward/mean": 0.1 * step,
        "timing_s/step": 1.0,
        "rollout/tokens": 100.0,
        "timing_s/rollout": 1.0,
        "store/used_bytes": 1000.0,
        "store/samples": 2.0 * (step + 1),
        **more,
    }


def span(t: float, worker: str = "rollout-0") -> Span:
    return Span(t=t, worker=worker, role="rollout", s=1.0, inside={"decode": 0.75, "idle": 0.25}, tokens_per_s=100.0)


def queues(**more: Any) -> Queues:
    holding = [Holding(id=SampleId(2, APPLES, 0), tokens=7)]
    worker = WorkerRow(
        worker="rollout-0",
        role="rollout",
        host="h",
        pid=1,
        slots=4,
        version=2,
        phase="",
        silent_s=0.1,
        holding=holding,
    )
    given = {
        "run": "watched", "uptime_s": 9.0, "version": 2, "step": 2, "steps": 4, "finished": False,
        "queues": {"running": 1}, "oldest_s": {}, "workers": [worker], "open_steps": [],
    }  # fmt: skip
    return Queues(**(given | more))
