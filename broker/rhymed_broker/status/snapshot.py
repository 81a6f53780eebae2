"""A snapshot of the run for people: pure, from the ledger, the time and a `RunInfo`."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, count, islice, takewhile

from rhymed import messages
from rhymed_broker.ledger.ledger import Ledger
from rhymed_broker.ledger.step import OpenStep
from rhymed_broker.ledger.workers import Worker
from rhymed_broker.states import Sample
from rhymed_broker.status.diagnostics import diagnostics

GROUPS = 96  # rows per step


@dataclass(frozen=True)
class RunInfo:
    """What a snapshot shows in addition to the ledger."""

    name: str
    uptime_s: float = 0.0
    steps: int | None = None  # of the whole run; None: the dataset is not read yet
    finished: bool = False
    metrics: dict[str, float] = field(default_factory=dict)  # of the last trained step
    evaluation: dict[str, float] = field(default_factory=dict)  # the newest one
    lag_ms: float = 0.0
    store: dict[str, float] = field(default_factory=dict)
    warnings: Sequence[str] = ()  # empty ones are left out


def queues(ledger: Ledger, now: float, run: RunInfo, *, only: str | None = None) -> messages.Queues:
    """`only`: with the samples of this worker alone; None: of all workers."""
    begun = _begun(ledger)
    depths, waiting = ledger.samples.depths(), ledger.samples.queues
    return messages.Queues(
        run=run.name,
        uptime_s=run.uptime_s,
        version=ledger.version,
        step=ledger.version,
        steps=run.steps or 0,
        finished=run.finished,
        queues={str(state): depth for state, depth in depths.items()},
        oldest_s={str(state): now - next(iter(queue)).since for state, queue in waiting.items() if queue},
        workers=[
            _worker(worker, now, with_samples=only is None or name == only)
            for name, worker in sorted(ledger.workers.by_name.items())
        ],
        open_steps=[
            _step(open_step, now, begun.get(step, {})) for step, open_step in ledger.samples.open_steps.items()
        ],
        metrics=run.metrics,
        val=run.evaluation,
        lag_ms=run.lag_ms,
        counts=dict(ledger.samples.counts),
        store=run.store,
        troubles=diagnostics(ledger, now, up_s=run.uptime_s, ready=run.steps is not None, others=run.warnings),
        paused=ledger.control.paused,
    )


def group(ledger: Ledger, step: int, prompt: str, now: float) -> messages.Group:
    """One prompt's samples, each with its story."""
    open_step = ledger.samples.open_steps.get(step)
    if open_step is None:
        return messages.Group(step=step, prompt=prompt, members=[])
    samples = takewhile(bool, (open_step.samples.get(messages.SampleId(step, prompt, index)) for index in count()))
    members = [_member(sample, now) for sample in samples if sample is not None]
    return messages.Group(step=step, prompt=prompt, members=members, expected=open_step.forecast.get(prompt, 0.0))


def _member(sample: Sample, now: float) -> messages.Member:
    return messages.Member(
        index=sample.id.index,
        state=sample.state,
        worker=sample.worker,
        tokens=sample.length or sample.tokens,
        reward=sample.reward,
        story=[messages.Moment(ago_s=now - at, event=event, who=who) for at, event, who in sample.story],
    )


def numbers(stats: messages.StoreStats) -> dict[str, float]:
    """The numeric fields of the store's statistics."""
    fields = {name: getattr(stats, name) for name in stats.__struct_fields__}
    return {name: float(value) for name, value in fields.items() if isinstance(value, int | float)}


def stored(numbers: dict[str, float]) -> dict[str, float]:
    """The store's part of a step's metrics; empty before its first statistics."""
    return {f"store/{name}": numbers[name] for name in ("used_bytes", "samples") if name in numbers}


def _worker(worker: Worker, now: float, *, with_samples: bool) -> messages.WorkerRow:
    tokens = {item.id: item.tokens for item in worker.holding} if with_samples else {}
    return messages.WorkerRow(
        worker=worker.name,
        role=worker.role,
        host=worker.host,
        pid=worker.pid,
        slots=worker.slots,
        version=worker.version,
        phase=worker.phase,
        silent_s=now - worker.seen,
        holding=[
            messages.Holding(id=id, tokens=tokens.get(id, 0), parked=id in worker.parked, seconds=now - sample.since)
            for id, sample in (worker.held.items() if with_samples else ())
        ],
        stats=worker.stats,
        held=len(worker.held),
        parked=len(worker.parked),
        accept_length=worker.accept_length,
        drained=worker.drained,
        usage=worker.usage,
    )


def _begun(ledger: Ledger) -> dict[int, dict[str, list[Sample]]]:
    """Step -> prompt -> its samples that are being written, or that their environment answers or has to."""
    begun: dict[int, dict[str, list[Sample]]] = {}
    queues = ledger.samples.queues
    for sample in chain(queues["running"], queues["turned"], queues["acting"]):
        begun.setdefault(sample.id.step, {}).setdefault(sample.id.prompt, []).append(sample)
    return begun


def _groups(open_step: OpenStep, begun: dict[str, list[Sample]]) -> list[messages.GroupRow]:
    """The first `GROUPS`, begun ones first, the longest before the others. Costs O(begun samples)."""
    first = heapq.nlargest(GROUPS, begun, key=lambda prompt: max(sample.tokens for sample in begun[prompt]))
    others = (prompt for prompt in open_step.prompts() if prompt not in begun)
    return [open_step.row(prompt, begun.get(prompt, ())) for prompt in islice(chain(first, others), GROUPS)]


def _step(open_step: OpenStep, now: float, begun: dict[str, list[Sample]]) -> messages.StepRow:
    return messages.StepRow(
        step=open_step.step,
        states={str(state): count for state, count in open_step.counts.items() if count},
        groups_ready=open_step.groups_ready,
        groups=open_step.groups,
        filtered=len(open_step.filtered),
        refilled=open_step.refilled,
        open_s=now - open_step.meter.opened_at,
        rows=_groups(open_step, begun),
    )
