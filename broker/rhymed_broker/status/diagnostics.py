"""What keeps a run from going on just now, in words for people. Pure: from the ledger and the time.

Nobody waits in silence: every wait that a person could end, or would want to know of, has its sentence here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rhymed.messages import EVAL
from rhymed.text import step_name
from rhymed_broker.ledger.ledger import Ledger
from rhymed_broker.ledger.retries import TAKEN

PATIENCE_S = 10.0  # what is over sooner is no trouble
LOADING_S = 90.0
PHASE_S = 300.0  # a trainer tells of every micro-batch
MANY = 0.5  # of a step's samples
WORDS = 160  # characters of a reason
LOOKED = 64  # of the samples that are longest in their state


def troubles(ledger: Ledger, now: float, *, up_s: float, ready: bool, others: Sequence[str] = ()) -> list[str]:
    """`up_s`: since the broker began; `ready`: the dataset is read; `others`: further ones, empty ones left out."""
    found = [*_steered(ledger, now), *(other for other in others if other)]
    if ready and up_s > PATIENCE_S:
        found += _absent(ledger, now)
    more = [*_resting(ledger, now), *_refused(ledger, now), *_loading(ledger, now), *_dropped(ledger)]
    return [*found, *_silent(ledger, now), *_slow(ledger, now), *_stuck(ledger, now), *more]


def _steered(ledger: Ledger, now: float) -> Iterator[str]:
    """What a person wanted, and another may have forgotten."""
    steering = ledger.control
    if steering.paused:
        yield f"paused by an operator for {now - steering.paused_at:.0f} s; `rhymed steer resume` goes on"
    for state, role in (("waiting", "rollout"), ("generated", "reward")):
        crew = [worker for worker in ledger.workers.by_name.values() if worker.role == role]
        if crew and all(worker.drained for worker in crew) and ledger.samples.queues[state]:  # type: ignore[index]
            yield f"every {role} worker is drained; `rhymed steer undrain WORKER` gives one work again"
    for open_step in ledger.samples.evaluations():
        version = open_step.step - EVAL
        crew = [worker for worker in ledger.workers.by_name.values() if worker.role == "rollout"]
        able = [worker for worker in crew if worker.version == version]
        if open_step.counts["waiting"] and able and all(worker.drained for worker in able):
            yield f"the evaluation of version {version} waits for {able[0].name}, which is drained"


def _absent(ledger: Ledger, now: float) -> Iterator[str]:
    if ledger.finished:
        return
    if ledger.workers.trainer is None:
        yield "no trainer is here: nothing is trained, and no weights are given out"
    for state, role, what in (("waiting", "rollout", "written"), ("generated", "reward", "scored")):
        queue = ledger.samples.queues[state]  # type: ignore[index]
        here = any(worker.role == role for worker in ledger.workers.by_name.values())
        if queue and not here and now - next(iter(queue)).since > PATIENCE_S:
            yield f"no {role} worker is here: {len(queue)} samples wait to be {what}"


def _silent(ledger: Ledger, now: float) -> Iterator[str]:
    limit_s = min(PATIENCE_S, ledger.rules.lost_after_s / 2)
    for name, worker in sorted(ledger.workers.by_name.items()):
        if now - worker.seen > limit_s:
            lost_s = ledger.rules.lost_after_s - (now - worker.seen)
            yield f"{name} has been silent for {now - worker.seen:.0f} s; lost in {max(0.0, lost_s):.0f} s"


def _resting(ledger: Ledger, now: float) -> Iterator[str]:
    for name, worker in sorted(ledger.workers.by_name.items()):
        if worker.rests_until > now:
            times = ledger.workers.deaths.get(name, 0)
            yield f"{name} died {times} times in a row and did nothing: no work for {worker.rests_until - now:.0f} s"


def _refused(ledger: Ledger, now: float) -> Iterator[str]:
    refused_s, refusal = ledger.handover.refused_s(now), ledger.handover.refusal
    if refused_s > PATIENCE_S and refusal is not None:
        yield f"{step_name(ledger.version)} could not be given to the trainer for {refused_s:.0f} s: {refusal.why}"


def _dropped(ledger: Ledger) -> Iterator[str]:
    """A run goes on without them, and learns next to nothing."""
    step, samples, dropped = ledger.samples.sparse
    why = ledger.samples.last_drop[:WORDS]
    if not ledger.finished and dropped > samples * MANY:
        yield f"{dropped} of {samples} samples of {step_name(step)} were dropped, lately: {why}"


def _loading(ledger: Ledger, now: float) -> Iterator[str]:
    for name, worker in sorted(ledger.workers.by_name.items()):
        if worker.target != -1 and now - worker.target_at > LOADING_S:
            yield f"{name} was told to load version {worker.target} {now - worker.target_at:.0f} s ago"


def _slow(ledger: Ledger, now: float) -> Iterator[str]:
    trainer = ledger.workers.trainer
    if trainer is None or trainer.phase in ("", "idle") or now - trainer.phase_at < PHASE_S:
        return
    yield f"{trainer.name} has been at '{trainer.phase}' for {now - trainer.phase_at:.0f} s"


def _stuck(ledger: Ledger, now: float) -> Iterator[str]:
    """The first of each state."""
    limit_s = ledger.rules.stuck_after_s
    for state in TAKEN:
        for sample, _ in zip(ledger.samples.queues[state], range(LOOKED), strict=False):
            still_s = now - max(sample.since, sample.advanced)
            worker = ledger.workers.by_name.get(sample.worker)
            parked = worker is not None and sample.id in worker.parked
            if still_s > limit_s / 3 and not parked:
                yield (
                    f"sample {sample.id} has been {state} with {sample.worker} for {still_s:.0f} s without a change;"
                    f" taken from it in {max(0.0, limit_s - still_s):.0f} s"
                )
                break
