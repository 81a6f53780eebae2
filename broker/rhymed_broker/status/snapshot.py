"""A snapshot of everything for people: pure, from the ledger and the time."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import chain, count, islice, takewhile

from rhymed.messages import (
    Group,
    GroupRow,
    Holding,
    Member,
    Moment,
    Queues,
    SampleId,
    StepRow,
    StoreStats,
    WorkerRow,
)
from rhymed_broker.ledger.ledger import Ledger
from rhymed_broker.ledger.step import OpenStep
from rhymed_broker.ledger.workers import Worker
from rhymed_broker.states import Sample
from rhymed_broker.status.diagnostics import troubles

GROUPS = 96  # of a step that are told one by one


def queues(
    ledger: Ledger,
    now: float,
    *,
    run: str,
    started_at: float,
    steps: int,
    finished: bool,
    metrics: dict[str, float],
    val: dict[str, float],
    lag_ms: float,
    ready: bool = True,
    others: Sequence[str] = (),
    store: dict[str, float] | None = None,
    brief: str | None = None,
) -> Queues:
    """`ready`: the dataset is read; `others`: further troubles, empty ones left out.

    `brief`: tell the samples of this worker only; None: of all.
    """
    running = _running(ledger)
    return Queues(
        run=run,
        uptime_s=now - started_at,
        version=ledger.version,
        step=ledger.version,
        steps=steps,
        finished=finished,
        queues={str(state): depth for state, depth in ledger.samples.depths().items()},
        oldest_s={
            str(state): now - next(iter(queue)).since for state, queue in ledger.samples.queues.items() if queue
        },
        workers=[
            _worker(worker, now, brief is None or name == brief)
            for name, worker in sorted(ledger.workers.by_name.items())
        ],
        open_steps=[
            _step(open_step, now, running.get(open_step.step, {})) for open_step in ledger.samples.open_steps.values()
        ],
        metrics=metrics,
        val=val,
        lag_ms=lag_ms,
        counts=dict(ledger.samples.counts),
        store=store or {},
        troubles=troubles(ledger, now, up_s=now - started_at, ready=ready, others=others),
        paused=ledger.control.paused,
    )


def group(ledger: Ledger, step: int, prompt: str, now: float) -> Group:
    """One prompt's samples, each with its story."""
    open_step = ledger.samples.open_steps.get(step)
    if open_step is None:
        return Group(step=step, prompt=prompt, members=[])
    found = takewhile(bool, (open_step.samples.get(SampleId(step, prompt, index)) for index in count()))
    members = [_member(sample, now) for sample in found if sample is not None]
    return Group(step=step, prompt=prompt, members=members, expected=open_step.forecast.get(prompt, 0.0))


def _member(sample: Sample, now: float) -> Member:
    return Member(
        index=sample.id.index,
        state=sample.state,
        worker=sample.worker,
        tokens=sample.length or sample.tokens,
        reward=sample.reward,
        story=[Moment(ago_s=now - at, event=event, who=who) for at, event, who in sample.story],
    )


def numbers(stats: StoreStats) -> dict[str, float]:
    """What the store tells of itself, as far as it is numbers; names as in `StoreStats`."""
    fields = {name: getattr(stats, name) for name in stats.__struct_fields__}
    return {name: float(value) for name, value in fields.items() if isinstance(value, int | float)}


def stored(numbers: dict[str, float]) -> dict[str, float]:
    """What a step's row tells of the store; empty before that has told anything."""
    return {f"store/{name}": numbers[name] for name in ("used_bytes", "samples") if name in numbers}


def _worker(worker: Worker, now: float, told: bool) -> WorkerRow:
    """`told`: with its samples."""
    tokens = {item.id: item.tokens for item in worker.holding} if told else {}
    return WorkerRow(
        worker=worker.name,
        role=worker.role,
        host=worker.host,
        pid=worker.pid,
        slots=worker.slots,
        version=worker.version,
        phase=worker.phase,
        silent_s=now - worker.seen,
        holding=[
            Holding(id=id, tokens=tokens.get(id, 0), parked=id in worker.parked, seconds=now - sample.since)
            for id, sample in (worker.held.items() if told else ())
        ],
        stats=worker.stats,
        held=len(worker.held),
        parked=len(worker.parked),
        accept_length=worker.accept_length,
        drained=worker.drained,
    )


def _running(ledger: Ledger) -> dict[int, dict[str, list[int]]]:
    """Step -> prompt -> tokens of each of its samples that run."""
    found: dict[int, dict[str, list[int]]] = {}
    for sample in ledger.samples.queues["running"]:
        found.setdefault(sample.id.step, {}).setdefault(sample.id.prompt, []).append(sample.tokens)
    return found


def _groups(open_step: OpenStep, running: dict[str, list[int]]) -> list[GroupRow]:
    """As many as are told: those that run come first, the longest before the others. Costs what runs, not what
    waits."""
    first = heapq.nlargest(GROUPS, running, key=lambda prompt: max(running[prompt]))
    others = (prompt for prompt in open_step.prompts() if prompt not in running)
    return [open_step.row(prompt, running.get(prompt, ())) for prompt in islice(chain(first, others), GROUPS)]


def _step(open_step: OpenStep, now: float, running: dict[str, list[int]]) -> StepRow:
    return StepRow(
        step=open_step.step,
        states={str(state): count for state, count in open_step.counts.items() if count},
        groups_ready=open_step.groups_ready,
        groups=open_step.groups,
        open_s=now - open_step.meter.opened_at,
        rows=_groups(open_step, running),
    )
