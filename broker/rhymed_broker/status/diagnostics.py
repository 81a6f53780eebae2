"""What keeps the run from making progress now, in sentences for people. Pure: from the ledger and the time.

Every wait that a person could end, or would want to know of, has its sentence here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import get_args

from rhymed.messages import EVAL, Role
from rhymed.text import readable, step_name
from rhymed_broker.ledger.ledger import Ledger
from rhymed_broker.ledger.retries import TAKEN
from rhymed_broker.states import State

PATIENCE_S = 5.0  # shorter waits are not reported
START_S = 300.0  # for the first worker of a role, which may load a large engine
LOADING_S = 90.0
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
        version = open_step.step - EVAL
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
        if worker.waits:
            seen.setdefault(worker.waits.partition(":")[2], f"{name} has waited {worker.waits[:WORDS]}")
    yield from seen.values()


def _resting(ledger: Ledger, now: float) -> Iterator[str]:
    for name, worker in sorted(ledger.workers.by_name.items()):
        if worker.rests_until > now:
            yield f"{name} {worker.rests_why}: no work for {worker.rests_until - now:.0f} s"


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
        if worker.target != -1 and now - worker.target_at > LOADING_S:
            yield f"{name} was asked to load version {worker.target} {now - worker.target_at:.0f} s ago"


def _slow(ledger: Ledger, now: float) -> Iterator[str]:
    trainer = ledger.workers.trainer
    if trainer is None or trainer.phase in ("", "idle") or now - trainer.phase_at < PHASE_S:
        return
    yield f"{trainer.name} has been at '{trainer.phase}' for {now - trainer.phase_at:.0f} s"


def _stuck(ledger: Ledger, now: float) -> Iterator[str]:
    limit_s = ledger.rules.stuck_after_s
    for state in TAKEN:
        for sample, _ in zip(ledger.samples.queues[state], range(CHECKED), strict=False):
            still_s = now - max(sample.since, sample.advanced)
            worker = ledger.workers.by_name.get(sample.worker)
            parked = worker is not None and sample.id in worker.parked
            if still_s > limit_s / 3 and not parked:
                name = readable(str(sample.id))
                yield (
                    f"sample {name} has been {state} with {sample.worker} for {still_s:.0f} s without a change;"
                    f" taken from it in {max(0.0, limit_s - still_s):.0f} s"
                )
                break
