"""A snapshot of the broker in Prometheus' text format. Pure: from `Queues` to bytes, for whoever serves /metrics.

Names are those of docs/metrics.md, with `rhymed_` before them and `_` for what Prometheus does not allow. Invariants:
no two series are the same, whatever scorers, datasets and workers are called; and there are not too many: workers
after the first `MAX_WORKERS` by name have no series of their own (but count in the sums), what workers tell is taken
only under the names listed here, and only the newest `MAX_STEPS` open steps are told one by one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from rhymed.messages import EVAL, Queues, StepRow, WorkerRow
from rhymed.service.activities import seconds_of

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

MAX_WORKERS = 4096  # with series of their own
MAX_STEPS = 16
MAX_METRICS = 1024  # of the step trained last, and of the newest evaluation: more than any run has

Kind = Literal["gauge", "counter"]
Labels = dict[str, str]
Sample = tuple[Labels, float]

OVER = ("trained", "dropped")
"""Queues that nobody takes from: the counter of events tells of them instead."""

TOLD: dict[str, tuple[str, Kind, str]] = {
    "rollout/tokens_per_s": ("tokens_per_second", "gauge", "Tokens that the worker made a second, lately."),
    "rollout/running": ("running_samples", "gauge", "Samples that its engine decodes."),
    "rollout/waiting": ("waiting_samples", "gauge", "Samples that wait in its engine."),
    "reward/scored": ("scored_total", "counter", "Samples that it has scored since it began."),
    "reward/errors": ("score_errors_total", "counter", "Scorings that failed since it began."),
    "reward/timeouts": ("score_timeouts_total", "counter", "Scorings that took too long since it began."),
    "timing_s/score": ("score_seconds", "gauge", "Mean time of scoring a sample."),
}
"""What workers tell in heartbeats -> name after `rhymed_worker_`, kind, help."""

STORE: dict[str, tuple[str, Kind, str]] = {
    "samples": ("samples", "gauge", "Samples in the store."),
    "tokens": ("tokens", "gauge", "Response tokens in the store."),
    "prompts": ("prompts", "gauge", "Prompts in the store."),
    "used_bytes": ("used_bytes", "gauge", "Bytes of the store's map that are used."),
    "map_bytes": ("map_bytes", "gauge", "Bytes that the store's map can grow to."),
    "commits": ("commits_total", "counter", "Transactions since the store began."),
    "commit_s": ("commit_seconds", "gauge", "Mean time of the last transactions."),
}


def exposition(queues: Queues) -> bytes:
    """The whole answer to a scrape; serve it as `CONTENT_TYPE`. About 0.1 s for thousands of workers."""
    text = _Text(queues.run)
    _run(text, queues)
    _samples(text, queues)
    _steps(text, queues)
    _store(text, queues.store)
    _workers(text, queues.workers)
    _metrics(text, queues.metrics, "of the step trained last")
    _metrics(text, queues.val, "of the newest evaluation")
    return text.bytes()


class _Text:
    """Lines of the format. A family that is there already is not written again."""

    def __init__(self, run: str) -> None:
        self._run = f'run="{_escaped(run)}"'
        self._families: set[str] = set()
        self._lines: list[str] = []

    def family(self, name: str, kind: Kind, help: str, samples: Iterable[Sample]) -> None:
        """`name` without `rhymed_`; label values may be any text."""
        name = f"rhymed_{name}"
        if name in self._families:
            return
        self._families.add(name)
        lines = [f"{name}{{{self._run}{_labels(labels)}}} {_number(value)}" for labels, value in samples]
        if lines:
            self._lines += (f"# HELP {name} {help}", f"# TYPE {name} {kind}", *lines)

    def gauge(self, name: str, value: float, help: str) -> None:
        self.family(name, "gauge", help, [({}, value)])

    def bytes(self) -> bytes:
        return ("\n".join(self._lines) + "\n").encode("utf-8", "replace")


def _run(text: _Text, queues: Queues) -> None:
    text.gauge("up", 1.0, "The broker has answered; a run that is over has no such series.")
    text.gauge("uptime_seconds", queues.uptime_s, "Since the broker began.")
    text.gauge("step", queues.step, "Step to be trained next, from 0.")
    text.gauge("steps", queues.steps, "Steps of the whole run.")
    text.gauge("policy_version", queues.version, "Newest published policy version.")
    text.gauge("finished", float(queues.finished), "1 when all steps are trained.")
    text.gauge("troubles", len(queues.troubles), "What keeps the run from going on just now: how many things.")
    text.gauge(
        "event_loop_lag_seconds", queues.lag_ms / 1000, "99th percentile of the last seconds, of the broker's."
    )


def _samples(text: _Text, queues: Queues) -> None:
    depths = [({"queue": queue}, depth) for queue, depth in queues.queues.items() if queue not in OVER]
    text.family("queue_samples", "gauge", "Samples of the open steps by state.", depths)
    ages = [({"queue": queue}, queues.oldest_s.get(queue, 0.0)) for queue in queues.queues if queue not in OVER]
    text.family("queue_oldest_seconds", "gauge", "For how long the oldest sample has been in that state.", ages)
    counts = dict(queues.counts)
    tokens, lost = counts.pop("tokens", 0), counts.pop("lost", 0)
    if queues.counts:
        events = dict.fromkeys(("generated", "scored", "trained", "dropped"), 0) | counts
        samples = [({"event": event}, count) for event, count in sorted(events.items())]
        text.family("samples_total", "counter", "Samples by what happened to them, since the broker began.", samples)
        text.family("tokens_total", "counter", "Response tokens of finished samples, likewise.", [({}, tokens)])
        text.family("workers_lost_total", "counter", "Workers that fell silent, likewise.", [({}, lost)])


def _steps(text: _Text, queues: Queues) -> None:
    rows = [row for row in queues.open_steps if row.step < EVAL][-MAX_STEPS:]
    told: tuple[tuple[str, str, Callable[[StepRow], float]], ...] = (
        ("open_step_groups", "Groups of an open step.", lambda row: row.groups),
        ("open_step_groups_ready", "Groups whose samples are all scored or dropped.", lambda row: row.groups_ready),
        ("open_step_seconds", "Since the step was opened.", lambda row: row.open_s),
    )
    for name, help, of in told:
        text.family(name, "gauge", help, [({"step": str(row.step)}, of(row)) for row in rows])


def _store(text: _Text, store: Mapping[str, float]) -> None:
    told = {**store, "commit_s": store["commit_ms"] / 1000} if "commit_ms" in store else store
    for key, (name, kind, help) in STORE.items():
        if key in told:
            text.family(f"store_{name}", kind, help, [({}, told[key])])


def _workers(text: _Text, workers: list[WorkerRow]) -> None:
    roles = sorted({row.role for row in workers} | {"rollout", "reward", "trainer"})
    present = [({"role": role}, float(sum(row.role == role for row in workers))) for role in roles]
    text.family("workers", "gauge", "Workers that are here.", present)
    shown = sorted(workers, key=lambda row: row.worker)[:MAX_WORKERS]
    left_out = float(len(workers) - len(shown))
    text.gauge(
        "workers_left_out", left_out, f"Workers without series of their own: more than {MAX_WORKERS} are here."
    )
    named = [({"worker": row.worker, "role": row.role}, row) for row in shown]
    known: tuple[tuple[str, str, Callable[[WorkerRow], float]], ...] = (
        ("slots", "Samples that it can have in hand at once.", lambda row: row.slots),
        ("held_samples", "Samples that it has in hand.", lambda row: row.held),
        ("policy_version", "Policy version that it has loaded; -1: none.", lambda row: row.version),
        ("silent_seconds", "Since it was heard last.", lambda row: row.silent_s),
    )
    for name, help, of in known:
        text.family(f"worker_{name}", "gauge", help, [(labels, of(row)) for labels, row in named])
    for key, (name, kind, help) in TOLD.items():
        told = [(labels, row.stats[key]) for labels, row in named if key in row.stats]
        text.family(f"worker_{name}", kind, help, told)
    _seconds(text, named)


def _seconds(text: _Text, named: list[tuple[Labels, WorkerRow]]) -> None:
    spent = (
        ({**labels, "activity": activity}, seconds)
        for labels, row in named
        for activity, seconds in seconds_of(row.role, row.stats).items()
    )
    text.family("worker_seconds_total", "counter", "What its time went to, since it began.", spent)


def _metrics(text: _Text, metrics: Mapping[str, float], whose: str) -> None:
    """Two that look alike in Prometheus' letters: the first by name is told, the other is not."""
    for name, value in sorted(metrics.items())[:MAX_METRICS]:
        text.gauge(allowed(name), value, f"{_helped(name)}, {whose}.")


def allowed(name: str) -> str:
    """A metric of metrics.jsonl in Prometheus' letters, e.g. response_length_mean."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", name)


def _labels(labels: Labels) -> str:
    return "".join(f',{key}="{_escaped(value)}"' for key, value in labels.items())


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _helped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _number(value: float) -> str:
    if math.isfinite(value):
        return repr(float(value))
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
