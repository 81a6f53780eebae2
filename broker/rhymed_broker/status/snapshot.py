"""A snapshot of the run for people: pure, from the ledger and the time.

`queues` is the snapshot, and `diagnostics` says in sentences what keeps the run from going on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import get_args

import msgspec

from rhymed.core import messages
from rhymed.core.errors import FilesLost, RhymedError
from rhymed.core.messages import GetQueues, Queues, Role
from rhymed.core.service.retry import WAITS
from rhymed.core.service.service import LagMeter
from rhymed.core.steps import evaluated_version
from rhymed.core.text import counted, readable, step_name
from rhymed_broker.ledger.ledger import Ledger
from rhymed_broker.ledger.retries import TAKEN
from rhymed_broker.ledger.step import OpenStep
from rhymed_broker.ledger.workers import Worker
from rhymed_broker.states import State
from rhymed_store.client import StoreClient


def queues(
    ledger: Ledger,
    now: float,
    run: str,
    *,
    uptime_s: float = 0.0,
    steps: int | None = None,
    finished: bool = False,
    warnings: Sequence[str] = (),
    brief: bool = False,
) -> messages.Queues:
    """`run`: its name. `steps`: of the whole run; None: the dataset is not read yet. `warnings`: further ones, or
    empty strings. `brief`: without the samples that workers hold."""
    depths, waiting = ledger.samples.depths(), ledger.samples.queues
    return messages.Queues(
        run=run,
        uptime_s=uptime_s,
        version=ledger.version,
        step=ledger.version,
        steps=steps or 0,
        finished=finished,
        queues={str(state): depth for state, depth in depths.items()},
        oldest_s={str(state): now - next(iter(queue)).since for state, queue in waiting.items() if queue},
        workers=[_worker(worker, now, brief=brief) for _, worker in sorted(ledger.workers.by_name.items())],
        open_steps=[_step(open_step, now) for open_step in ledger.samples.open_steps.values()],
        counts=dict(ledger.samples.counts),
        troubles=diagnostics(ledger, now, up_s=uptime_s, ready=steps is not None, others=warnings),
        paused=ledger.control.paused,
    )


def numbers(stats: messages.StoreStats) -> dict[str, float]:
    """The numeric fields of the store's statistics."""
    fields = {name: getattr(stats, name) for name in stats.__struct_fields__}
    return {name: float(value) for name, value in fields.items() if isinstance(value, int | float)}


def stored(numbers: dict[str, float]) -> dict[str, float]:
    """The store's part of a step's metrics; empty before its first statistics."""
    return {f"store/{name}": numbers[name] for name in ("used_bytes", "samples") if name in numbers}


def _worker(worker: Worker, now: float, *, brief: bool) -> messages.WorkerRow:
    tokens = {} if brief else {item.id: item.tokens for item in worker.report.holding}
    return messages.WorkerRow(
        worker=worker.name,
        role=worker.role,
        host=worker.join.host,
        pid=worker.join.pid,
        slots=worker.slots,
        version=worker.version,
        phase=worker.report.phase,
        silent_s=now - worker.seen,
        holding=[
            messages.Holding(id=id, tokens=tokens.get(id, 0), parked=id in worker.parked, seconds=now - sample.since)
            for id, sample in (() if brief else worker.held.items())
        ],
        stats=worker.report.stats,
        held=len(worker.held),
        parked=len(worker.parked),
        accept_length=worker.accept_length,
        drained=worker.drained,
        usage=worker.report.usage,
    )


def _step(open_step: OpenStep, now: float) -> messages.StepRow:
    return messages.StepRow(
        step=open_step.step,
        states={str(state): count for state, count in open_step.counts.items() if count},
        groups_ready=open_step.groups_ready,
        groups=open_step.groups,
        filtered=len(open_step.filtered),
        refilled=open_step.refilled,
        open_s=now - open_step.meter.opened_at,
    )


# What keeps the run from making progress now, in sentences for people. Pure: from the ledger and the time.
#
# Every wait that a person could end, or would want to know of, has its sentence here.

PATIENCE_S = 5.0  # shorter waits are not reported
START_S = 300.0  # for the first worker of a role, which may load a large engine
LOADING_S = 90.0
STILL_S = 60.0  # a sample without a change; a tool may take so long
PHASE_S = 300.0  # a trainer changes its phase with every micro-batch
MANY = 0.5  # of a step's samples
WORDS = 160  # characters of a reason
QUEUES: tuple[tuple[State, Role, str], ...] = (
    ("waiting", "rollout", "generated"),
    ("turned", "environment", "answered by their environment"),
    ("generated", "reward", "scored"),
)
CHECKED = 64  # samples per state, those that entered it first


def diagnostics(ledger: Ledger, now: float, *, up_s: float, ready: bool, others: Sequence[str] = ()) -> list[str]:
    """`up_s`: since the broker started; `ready`: the dataset is read; `others`: more sentences, or empty strings."""
    lines = [*_operated(ledger, now), *(other for other in others if other)]
    if ready:
        lines += _absent(ledger, now, up_s)
    more = [*_resting(ledger, now), *_refused(ledger, now), *_loading(ledger, now), *_dropped(ledger), *_flat(ledger)]
    return [*lines, *_silent(ledger, now), *_waiting(ledger), *_slow(ledger, now), *_stuck(ledger, now), *more]


def _operated(ledger: Ledger, now: float) -> Iterator[str]:
    """What an operator asked for, and may have forgotten."""
    control = ledger.control
    if control.paused:
        yield f"paused by an operator for {now - control.paused_at:.0f} s; `rhymed steer resume` continues"
    for state, role, _ in QUEUES:
        workers = ledger.workers.of_role(role)
        if workers and all(worker.drained for worker in workers) and ledger.samples.queues[state]:
            yield f"every {role} worker is drained; `rhymed steer undrain WORKER` gives one work again"
    for open_step in ledger.samples.evaluations():
        version = evaluated_version(open_step.step)
        able = [worker for worker in ledger.workers.of_role("rollout") if worker.version == version]
        if open_step.counts["waiting"] and able and all(worker.drained for worker in able):
            yield f"the evaluation of version {version} waits for {able[0].name}, which is drained"


def _absent(ledger: Ledger, now: float, up_s: float) -> Iterator[str]:
    """Roles of which no worker is here, though there was one or the time for a start is over."""
    if ledger.finished:
        return
    late = {role for role in get_args(Role) if up_s > (PATIENCE_S if role in ledger.workers.joined else START_S)}
    if ledger.workers.trainer is None and "trainer" in late:
        yield "no trainer is here: no step is trained, and no weights are served"
    for state, role, what in QUEUES:
        queue = ledger.samples.queues[state]
        if queue and role in late and not ledger.workers.of_role(role) and now - next(iter(queue)).since > PATIENCE_S:
            yield f"no {role} worker is here: {len(queue)} samples wait to be {what}"


def _silent(ledger: Ledger, now: float) -> Iterator[str]:
    limit_s = min(PATIENCE_S, ledger.rules.lost_after_s / 2)
    for name, worker in sorted(ledger.workers.by_name.items()):
        if now - worker.seen > limit_s:
            lost_s = ledger.rules.lost_after_s - (now - worker.seen)
            yield f"{name} has been silent for {now - worker.seen:.0f} s; lost in {max(0.0, lost_s):.0f} s"


def _waiting(ledger: Ledger) -> Iterator[str]:
    """What a worker itself says that it waits for. Of several with the same words, one."""
    seen: dict[str, str] = {}
    for name, worker in sorted(ledger.workers.by_name.items()):
        if waits := worker.report.waits:
            seen.setdefault(waits.partition(":")[2], f"{name} has waited {waits[:WORDS]}")
    yield from seen.values()


def _resting(ledger: Ledger, now: float) -> Iterator[str]:
    for name, worker in sorted(ledger.workers.by_name.items()):
        if worker.rest is not None and worker.rest.until > now:
            yield f"{name} {worker.rest.why}: no work for {worker.rest.until - now:.0f} s"


def _refused(ledger: Ledger, now: float) -> Iterator[str]:
    refused_s, refusal = ledger.handover.refused_s(now), ledger.handover.refusal
    if refused_s > PATIENCE_S and refusal is not None:
        yield f"{step_name(ledger.version)} could not be given to the trainer for {refused_s:.0f} s: {refusal.why}"


def _dropped(ledger: Ledger) -> Iterator[str]:
    """The run continues without them, but learns little."""
    step, samples, dropped = ledger.samples.sparse
    why = ledger.samples.last_drop[:WORDS]
    if not ledger.finished and dropped > samples * MANY:
        yield f"{dropped} of {samples} samples of {step_name(step)} were dropped, lately: {why}"


def _flat(ledger: Ledger) -> Iterator[str]:
    """The run continues, but these groups change nothing."""
    step, groups, flat = ledger.samples.flat
    if not ledger.finished and flat > groups * MANY:
        yield (
            f"{flat} of {groups} groups of {step_name(step)} had no signal and could not be replaced any more"
            " (trainer.dynamic_sampling): are the prompts too easy or too hard?"
        )


def _loading(ledger: Ledger, now: float) -> Iterator[str]:
    for name, worker in sorted(ledger.workers.by_name.items()):
        engine = worker.engine
        if engine.late(now, LOADING_S):
            yield f"{name} was asked to load version {engine.target} {now - engine.ordered_at:.0f} s ago"


def _slow(ledger: Ledger, now: float) -> Iterator[str]:
    trainer = ledger.workers.trainer
    if trainer is None or trainer.report.phase in ("", "idle") or now - trainer.phase_at < PHASE_S:
        return
    yield f"{trainer.name} has been at '{trainer.report.phase}' for {now - trainer.phase_at:.0f} s"


def _stuck(ledger: Ledger, now: float) -> Iterator[str]:
    for state in TAKEN:
        limit_s = ledger.rules.still_s(state)
        for sample, _ in zip(ledger.samples.queues[state], range(CHECKED), strict=False):
            still_s = now - max(sample.since, sample.advanced)
            worker = ledger.workers.by_name.get(sample.worker)
            parked = worker is not None and sample.id in worker.parked
            if still_s > min(STILL_S, limit_s / 3) and not parked:
                name = readable(str(sample.id))
                yield (
                    f"sample {name} has been {state} with {sample.worker} for {still_s:.0f} s without a change;"
                    f" taken from it in {max(0.0, limit_s - still_s):.0f} s"
                )
                break


# The newest numbers of the ledger, the trainer, the evaluation and the store, as one snapshot for people.

STORE_POLL_S = 2.0
STORE_ANSWERS_S = 3.0


class Latest:
    def __init__(self, run: str, ledger: Ledger, lag: LagMeter) -> None:
        self.store: dict[str, float] = {}  # its last statistics
        self._run, self._ledger, self._lag = run, ledger, lag
        self._begun = time.monotonic()
        self._metrics: dict[str, float] = {}  # of the last trained step
        self._val: dict[str, float] = {}  # of the newest evaluation
        self._store_warning = ""

    def trained(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """A step's metrics, with the store's size."""
        self._metrics = {**metrics, **stored(self.store)}
        return self._metrics

    def evaluated(self, version: int, metrics: Mapping[str, float]) -> None:
        self._val = {"val/version": float(version), **metrics}

    async def watch(self, store: StoreClient) -> None:
        """Poll the store's statistics; a store that is away or full becomes a warning. Raises `FilesLost`."""
        most = 0
        while True:
            try:
                stats = await store.stats(deadline_s=STORE_ANSWERS_S)
                self._store_warning = stats.full
                self.store = numbers(stats)
            except RhymedError as error:
                self._store_warning = f"the store does not answer: {error}"
            else:
                if stats.samples < most:  # it deletes none
                    raise FilesLost(
                        f"the store has {counted(stats.samples, 'sample')} and had {most:,}: it came back with other"
                        " files. Put those of this run back and resume it, or resume it with --without-history"
                    )
                most = stats.samples
            await asyncio.sleep(STORE_POLL_S)

    def queues(self, request: GetQueues, *, steps: int | None, finished: bool, warnings: Sequence[str]) -> Queues:
        """`steps`: of the whole run; None: the dataset is not read yet."""
        now = time.monotonic()
        waits = f"the broker has waited {WAITS.longest}" if WAITS.longest else ""
        found: Queues = queues(
            self._ledger,
            now,
            self._run,
            uptime_s=now - self._begun,
            steps=steps,
            finished=finished,
            warnings=[self._store_warning, waits, *warnings],
            brief=request.brief,
        )
        return msgspec.structs.replace(
            found, metrics=self._metrics, val=self._val, lag_ms=self._lag.p99_ms(), store=self.store
        )
