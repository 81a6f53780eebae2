"""A snapshot of the broker in Prometheus' text format. Pure: from `Queues` to bytes.

Names are those of docs/metrics.md with the prefix `rhymed_`, and `_` for letters that Prometheus does not allow.
Invariants: no series occurs twice, whatever the names of scorers, datasets and workers; and the number of series is
bounded: only the first `MAX_WORKERS` workers by name have series of their own (all count in the sums), only the
listed statistics of workers are exported, and only the newest `MAX_STEPS` open steps.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal

from prometheus_client import Metric, generate_latest

from rhymed.core.messages import GpuUsage, Queues, StepRow, Usage, WorkerRow
from rhymed.core.service.stopwatch import seconds_of
from rhymed.core.steps import is_evaluation

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

MAX_WORKERS = 4096
MAX_STEPS = 16
MAX_GPUS = 16  # of a worker
MAX_METRICS = 1024  # of the step trained last, and of the newest evaluation: more than any run has

Kind = Literal["gauge", "counter"]
Labels = dict[str, str]
Sample = tuple[Labels, float]

FINAL = ("trained", "filtered", "dropped")
"""States that no sample leaves: `rhymed_samples_total` counts them instead."""

WORKER_STATS: dict[str, tuple[str, Kind, str]] = {
    "rollout/tokens_per_s": ("tokens_per_second", "gauge", "Recent tokens per second of the worker."),
    "rollout/running": ("running_samples", "gauge", "Samples that its engine decodes."),
    "rollout/waiting": ("waiting_samples", "gauge", "Samples that wait in its engine."),
    "environment/answers": ("answers_total", "counter", "Turns that it has answered since it started."),
    "environment/calls": ("calls_total", "counter", "Calls of tools and environments since it started."),
    "environment/call_errors": ("call_errors_total", "counter", "Calls that failed since it started."),
    "environment/failures": ("environment_failures_total", "counter", "Environments that failed since it started."),
    "environment/rebuilt": ("environments_rebuilt_total", "counter", "Environments made again since it started."),
    "reward/scored": ("scored_total", "counter", "Samples that it has scored since it started."),
    "reward/errors": ("score_errors_total", "counter", "Failed scorings since it started."),
    "reward/timeouts": ("score_timeouts_total", "counter", "Scorings that timed out since it started."),
    "reward/judge_requests": ("judge_requests_total", "counter", "Requests to judges since it started."),
    "reward/judge_repeats": ("judge_repeats_total", "counter", "Requests to judges that were repeated."),
    "reward/judge_cached": ("judge_cached_total", "counter", "Scores of judges that needed no request."),
    "reward/judge_unreadable": ("judge_unreadable_total", "counter", "Answers of judges without a score."),
    "timing_s/score": ("score_seconds", "gauge", "Mean time to score a sample."),
}
"""Statistic in heartbeats -> name after `rhymed_worker_`, kind, help."""

USAGE: dict[str, tuple[Kind, str, Callable[[Usage], float]]] = {
    "cpu": ("gauge", "Processors in use by its processes.", lambda usage: usage.cpu),
    "memory_bytes": ("gauge", "Memory of its processes alone.", lambda usage: usage.memory),
    "processes": ("gauge", "Its process and that one's descendants.", lambda usage: usage.processes),
}
GPUS: dict[str, tuple[str, Callable[[GpuUsage], float | None]]] = {
    "utilization": ("Share of time in which the GPU computed, for any program.", lambda gpu: gpu.utilization),
    "memory_bytes": ("Memory in use on the GPU, by all programs.", lambda gpu: gpu.memory),
    "memory_total_bytes": ("Memory of the GPU.", lambda gpu: gpu.memory_total),
    "celsius": ("Temperature of the GPU.", lambda gpu: gpu.celsius),
}
"""Name after `rhymed_worker_` and `rhymed_worker_gpu_`; help; value, None: the driver does not know it."""

STORE: dict[str, tuple[str, Kind, str]] = {
    "samples": ("samples", "gauge", "Samples in the store."),
    "tokens": ("tokens", "gauge", "Response tokens in the store."),
    "prompts": ("prompts", "gauge", "Prompts in the store."),
    "used_bytes": ("used_bytes", "gauge", "Used bytes of the store's map."),
    "map_bytes": ("map_bytes", "gauge", "Bytes that the store's map can grow to."),
    "commits": ("commits_total", "counter", "Transactions since the store started."),
    "commit_s": ("commit_seconds", "gauge", "Mean time of the last transactions."),
}


def exposition(queues: Queues) -> bytes:
    """The whole answer to a scrape; serve it as `CONTENT_TYPE`. About 0.4 s for 4,096 workers."""
    families = _Families(queues.run)
    _run(families, queues)
    _samples(families, queues)
    _steps(families, queues)
    _store(families, queues.store)
    _workers(families, queues.workers)
    _metrics(families, queues.metrics, "of the step trained last")
    _metrics(families, queues.val, "of the newest evaluation")
    return generate_latest(families)


class _Families:
    """A collector for `generate_latest`: metric families, each series with the run's name. A name is used once."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._families: dict[str, Metric] = {}

    def add(self, name: str, kind: Kind, help: str, samples: Iterable[Sample]) -> None:
        """`name` without `rhymed_`; label values may be any text."""
        name = f"rhymed_{name}"
        if name in self._families:
            return
        family = self._families[name] = Metric(name.removesuffix("_total") if kind == "counter" else name, help, kind)
        for labels, value in samples:
            family.add_sample(name, {"run": self._run, **labels}, value)

    def gauge(self, name: str, value: float, help: str) -> None:
        self.add(name, "gauge", help, [({}, value)])

    def collect(self) -> Iterator[Metric]:
        return (family for family in self._families.values() if family.samples)


def _run(families: _Families, queues: Queues) -> None:
    families.gauge("up", 1.0, "1 while the broker answers; a run that is over has no such series.")
    families.gauge("uptime_seconds", queues.uptime_s, "Seconds since the broker started.")
    families.gauge("step", queues.step, "Step that is trained next, from 0.")
    families.gauge("steps", queues.steps, "Steps of the whole run.")
    families.gauge("policy_version", queues.version, "Newest published policy version.")
    families.gauge("finished", float(queues.finished), "1 when all steps are trained.")
    families.gauge("troubles", len(queues.troubles), "Number of problems that hold the run up now.")
    families.gauge(
        "event_loop_lag_seconds",
        queues.lag_ms / 1000,
        "Lag of the broker's event loop: 99th percentile of the last seconds.",
    )


def _samples(families: _Families, queues: Queues) -> None:
    depths = [({"queue": queue}, depth) for queue, depth in queues.queues.items() if queue not in FINAL]
    families.add("queue_samples", "gauge", "Samples of the open steps by state.", depths)
    ages = [({"queue": queue}, queues.oldest_s.get(queue, 0.0)) for queue in queues.queues if queue not in FINAL]
    families.add("queue_oldest_seconds", "gauge", "Time that the oldest sample has spent in that state.", ages)
    counts = dict(queues.counts)
    tokens, lost = counts.pop("tokens", 0), counts.pop("lost", 0)
    if queues.counts:
        events = dict.fromkeys(("generated", "scored", "trained", "dropped"), 0) | counts
        samples = [({"event": event}, count) for event, count in sorted(events.items())]
        families.add("samples_total", "counter", "Samples by event, since the broker started.", samples)
        families.add(
            "tokens_total",
            "counter",
            "Response tokens of finished samples, since the broker started.",
            [({}, tokens)],
        )
        families.add("workers_lost_total", "counter", "Lost workers, since the broker started.", [({}, lost)])


def _steps(families: _Families, queues: Queues) -> None:
    rows = [row for row in queues.open_steps if not is_evaluation(row.step)][-MAX_STEPS:]
    gauges: tuple[tuple[str, str, Callable[[StepRow], float]], ...] = (
        ("open_step_groups", "Groups of an open step.", lambda row: row.groups),
        (
            "open_step_groups_ready",
            "Groups none of whose samples is in progress.",
            lambda row: row.groups_ready,
        ),
        ("open_step_seconds", "Seconds since the step was opened.", lambda row: row.open_s),
    )
    for name, help, of in gauges:
        families.add(name, "gauge", help, [({"step": str(row.step)}, of(row)) for row in rows])


def _store(families: _Families, store: Mapping[str, float]) -> None:
    values = {**store, "commit_s": store["commit_ms"] / 1000} if "commit_ms" in store else store
    for key, (name, kind, help) in STORE.items():
        if key in values:
            families.add(f"store_{name}", kind, help, [({}, values[key])])


def _workers(families: _Families, workers: list[WorkerRow]) -> None:
    roles = sorted({row.role for row in workers} | {"rollout", "reward", "trainer"})
    present = [({"role": role}, float(sum(row.role == role for row in workers))) for role in roles]
    families.add("workers", "gauge", "Connected workers.", present)
    shown = sorted(workers, key=lambda row: row.worker)[:MAX_WORKERS]
    left_out = float(len(workers) - len(shown))
    families.gauge(
        "workers_left_out",
        left_out,
        f"Workers without series of their own, because more than {MAX_WORKERS} are connected.",
    )
    named = [({"worker": row.worker, "role": row.role}, row) for row in shown]
    gauges: tuple[tuple[str, str, Callable[[WorkerRow], float]], ...] = (
        ("slots", "Samples that it can hold at once.", lambda row: row.slots),
        ("held_samples", "Samples that it holds.", lambda row: row.held),
        ("policy_version", "Policy version that it has loaded; -1: none.", lambda row: row.version),
        ("silent_seconds", "Seconds since its last heartbeat.", lambda row: row.silent_s),
    )
    for name, help, of in gauges:
        families.add(f"worker_{name}", "gauge", help, [(labels, of(row)) for labels, row in named])
    for key, (name, kind, help) in WORKER_STATS.items():
        values = [(labels, row.stats[key]) for labels, row in named if key in row.stats]
        families.add(f"worker_{name}", kind, help, values)
    _seconds(families, named)
    _usage(families, [(labels, row.usage) for labels, row in named if row.usage is not None])


def _usage(families: _Families, named: list[tuple[Labels, Usage]]) -> None:
    for name, (kind, help, of) in USAGE.items():
        families.add(f"worker_{name}", kind, help, [(labels, of(usage)) for labels, usage in named])
    for name, (help, known) in GPUS.items():
        values = [
            ({**labels, "gpu": str(gpu.index)}, value)
            for labels, usage in named
            for gpu in usage.gpus[:MAX_GPUS]
            if (value := known(gpu)) is not None
        ]
        families.add(f"worker_gpu_{name}", "gauge", help, values)


def _seconds(families: _Families, named: list[tuple[Labels, WorkerRow]]) -> None:
    spent = (
        ({**labels, "activity": activity}, seconds)
        for labels, row in named
        for activity, seconds in seconds_of(row.role, row.stats).items()
    )
    families.add("worker_seconds_total", "counter", "Seconds by activity, since it started.", spent)


def _metrics(families: _Families, metrics: Mapping[str, float], source: str) -> None:
    """Of two names that are equal in Prometheus' letters, only the first by name is exported."""
    for name, value in sorted(metrics.items())[:MAX_METRICS]:
        families.gauge(allowed(name), value, f"{name}, {source}.")


def allowed(name: str) -> str:
    """A metric of metrics.jsonl in Prometheus' letters, e.g. response_length_mean."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", name)
