"""What is remembered of workers that were here."""

from __future__ import annotations

import pytest

from rhymed.core import messages
from rhymed_broker.ledger import workers as module
from rhymed_broker.ledger.workers import Worker, Workers


def joined(workers: Workers, name: str, *, useless: bool = False) -> Worker:
    worker = Worker(messages.Join(role="rollout", worker=name, host="here", pid=1), now=0.0)
    workers.add(worker, 0.0)
    workers.welcome(worker, 0.0, useless=useless)
    return worker


def test_a_thief_with_many_names_costs_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them reports a sample that the store lacks, and dies."""
    monkeypatch.setattr(module, "MOST_NAMES", 3)
    workers = Workers()
    for number in range(9):
        worker = joined(workers, f"rollout-{number}", useless=True)
        workers.distrust(worker, 0.0)
        workers.remove(worker, 0.0)
    newest = {f"rollout-{number}": 1 for number in (6, 7, 8)}
    assert (workers.false_reports, workers.deaths) == (newest, newest)


def test_a_worker_that_does_wrong_repeatedly_rests_longer_and_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_NAMES", 3)
    workers = Workers()
    rests = []
    for number in range(4):
        worker = joined(workers, "rollout-0")
        workers.distrust(worker, 0.0)
        rests.append(worker.rest.until)
        workers.remove(worker, 0.0)
        workers.distrust(joined(workers, f"rollout-other-{number}"), 0.0)
    assert rests == [1.0, 2.0, 4.0, 8.0]
