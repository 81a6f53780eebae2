"""A following rank's part of checkpoints: copied in turn with its other orders, written on a thread of its own."""

from __future__ import annotations

import logging
import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from rhymed.errors import HOPELESS
from rhymed.service.service import EX_HOPELESS
from rhymed_workers.trainer.gang import orders, work
from rhymed_workers.trainer.gang.meeting import Meeting
from rhymed_workers.trainer.learner import TorchLearner
from rhymed_workers.trainer.saving.checkpoints import Finish

log = logging.getLogger(__name__)


class Saver:
    """`meeting`: a connection that nothing else uses."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self._meeting, self._rank = meeting, rank
        self._thread = ThreadPoolExecutor(1, "checkpoint")

    def save(self, learner: TorchLearner, order: orders.Save) -> None:
        """Returns when the next order may be taken. A part that cannot be written ends the process."""
        finish = work.snapshot(learner, Path(order.folder), self._rank, copy=order.copy)
        written = self._thread.submit(self._write, order.folder, finish)
        written.add_done_callback(self._check)

    def _write(self, folder: str, finish: Finish) -> None:
        self._meeting.put_digests(self._rank, folder, finish())

    def _check(self, written: Future[None]) -> None:
        if (error := written.exception()) is None:
            return
        log.error("ended: its part of a checkpoint: %s: %s", type(error).__name__, error, exc_info=error)
        self._meeting.fail(self._rank, error)
        logging.shutdown()
        os._exit(EX_HOPELESS if isinstance(error, HOPELESS) else 1)
