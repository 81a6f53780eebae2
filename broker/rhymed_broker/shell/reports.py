"""Passes workers' reports about samples to the ledger: at once, or as soon as the ledger has started.

Of `reward.on_error` only "stop" is
applied here: the reward worker turns an error into a zero, and the ledger drops a sample that has no reward.
"""

from __future__ import annotations

import logging
import time

from rhymed.config import Reward
from rhymed.errors import Overloaded, RewardError
from rhymed.messages import Ahead, Answered, Generated, GiveBack, Scored, Turned
from rhymed.service.logline import cause
from rhymed_broker.ledger.ledger import Ledger

log = logging.getLogger(__name__)

MOST_EARLY = 100_000  # samples in reports that wait for the start

Report = Generated | Turned | Answered | Scored | Ahead | GiveBack


class Reports:
    def __init__(self, ledger: Ledger, reward: Reward) -> None:
        self._ledger, self._reward = ledger, reward
        self._early: list[Report] = []  # received before the ledger started
        self._early_samples = 0

    def take(self, report: Report) -> None:
        """Raises `RewardError` if a sample could not be scored and the run has to stop for it, and `Overloaded`."""
        if isinstance(report, Scored) and self._reward.on_error == "stop":
            self._check(report)
        if self._ledger.started:
            self._apply(report)
        elif (early := self._early_samples + _size(report)) > MOST_EARLY:
            raise Overloaded("too many reports wait for the start of the run; try again later")
        else:
            self._early.append(report)
            self._early_samples = early

    def _check(self, report: Scored) -> None:
        """A score of a sample that its sender does not hold stops no run."""
        worker = self._ledger.workers.by_name[report.worker]
        for score in report.scores:
            if score.reward is None and not score.unstored and (score.id in worker.held or score.id in worker.claims):
                raise RewardError(f"sample {score.id} could not be scored: {score.error} (reward.on_error = 'stop')")

    def replay(self) -> None:
        """The ledger has started."""
        early, self._early, self._early_samples = self._early, [], 0
        for report in early:
            self._apply(report)

    def _apply(self, report: Report) -> None:
        now = time.monotonic()
        match report:
            case Generated():
                self._ledger.holdings.called(report.worker, [info.id for info in report.samples], report.calls)
                self._ledger.generated(report.worker, report.samples, now)
            case Turned():
                self._ledger.holdings.turned(report.worker, report.samples, now)
            case Answered():
                self._ledger.holdings.called(report.worker, report.samples, report.calls)
                self._ledger.holdings.answered(report.worker, report.samples, now)
            case Scored():
                self._ledger.scored(report.worker, report.scores, now)
            case Ahead():
                self._ledger.holdings.parked(report.worker, report.samples, now)
            case GiveBack(worker=worker, samples=ids, reason=reason, retry=retry, moved=moved):
                level, event = (logging.INFO, "moved") if moved else (logging.WARNING, "returned")
                fields = cause(event, ids, worker=worker)
                log.log(level, "%s gives back %d samples: %s", worker, len(ids), reason, extra=fields)
                self._ledger.retries.given_back(worker, ids, reason, now, retry=retry, moved=moved)


def _size(report: Report) -> int:
    """Samples; an empty report counts as one."""
    return max(1, len(report.scores if isinstance(report, Scored) else report.samples))
