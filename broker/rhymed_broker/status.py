"""A snapshot of everything for people: pure, from the ledger and the time."""

from __future__ import annotations

from collections.abc import Sequence

from rhymed.messages import Holding, Queues, StepRow, WorkerRow
from rhymed_broker.book import StepBook
from rhymed_broker.ledger import Ledger
from rhymed_broker.roster import Worker
from rhymed_broker.trouble import troubles


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
) -> Queues:
    """`ready`: the dataset is read; `others`: further troubles, empty ones left out."""
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
        workers=[_worker(worker, now) for _, worker in sorted(ledger.roster.workers.items())],
        open_steps=[_step(book, now) for book in ledger.samples.books.values()],
        metrics=metrics,
        val=val,
        lag_ms=lag_ms,
        troubles=troubles(ledger, now, up_s=now - started_at, ready=ready, others=others),
    )


def _worker(worker: Worker, now: float) -> WorkerRow:
    tokens = {item.id: item.tokens for item in worker.holding}
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
            for id, sample in worker.held.items()
        ],
        stats=worker.stats,
    )


def _step(book: StepBook, now: float) -> StepRow:
    return StepRow(
        step=book.step,
        states={str(state): count for state, count in book.counts.items() if count},
        groups_ready=book.groups_ready,
        groups=book.groups,
        open_s=now - book.meter.opened_at,
    )
