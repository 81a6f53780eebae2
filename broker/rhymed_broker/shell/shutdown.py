"""The last checkpoint: a run is finished when the trainer has written it and left.

A trainer that is here may take its time: its heartbeats and `trainer.stall_s` bound that. If it dies, the supervisor
restarts it, perhaps at an earlier step, and then the run continues.
"""

from __future__ import annotations

import asyncio
import logging
import time

from rhymed.errors import CheckpointLost
from rhymed_broker.ledger.ledger import Ledger
from rhymed_broker.ledger.workers import Worker
from rhymed_broker.shell.delivery import Delivery

log = logging.getLogger(__name__)

ABSENT_S = 600.0  # for a trainer that died to come back
LEAVE_S = 30.0  # for a trainer that has written it to leave
POLL_S = 0.1


class Shutdown:
    def __init__(self, ledger: Ledger, delivery: Delivery) -> None:
        self.waits = ""  # what the end waits for; empty: nothing
        self._ledger, self._delivery = ledger, delivery
        self._saved = 0  # steps in the newest checkpoint
        self._informed: Worker | None = None  # the trainer that knows of the end

    def roll_back(self) -> None:
        """Checkpoints of later steps no longer count."""
        self._saved = 0

    def checkpointed(self, steps: int) -> None:
        self._saved = max(self._saved, steps)

    async def last_checkpoint(self, reason: str) -> bool:
        """Wait for it, and for the trainer to leave. False: the trainer rolled back, and the run continues.

        Raises `CheckpointLost` if no trainer is here to write it.
        """
        self._informed = None
        begun = idle_at = time.monotonic()  # `idle_at`: since when no trainer is here that has something to write
        try:
            while self._ledger.finished:
                now, trainer = time.monotonic(), self._ledger.workers.trainer
                saved = self._saved >= self._ledger.steps
                if trainer is None and saved:
                    return True
                if trainer is not None and not saved:
                    idle_at = now
                    self.waits = f"the trainer writes the last checkpoint, {now - begun:.0f} s"
                elif not saved:
                    self.waits = f"no trainer is here to write the last checkpoint, {now - idle_at:.0f} s"
                if now - idle_at > (LEAVE_S if saved else ABSENT_S):
                    self._give_up(saved)
                    return True
                await self._inform(reason)
                await asyncio.sleep(POLL_S)
            return False
        finally:
            self.waits = ""

    def _give_up(self, saved: bool) -> None:
        if not saved:
            raise CheckpointLost(
                f"all {self._ledger.steps} steps are trained, but no trainer has been here for {ABSENT_S:.0f} s to"
                " write the last checkpoint: resume the run, and steps without a checkpoint are trained again"
            )
        log.warning("the trainer has not left %g s after the last checkpoint", LEAVE_S)

    async def _inform(self, reason: str) -> None:
        trainer = self._ledger.workers.trainer
        if (
            trainer is not None
            and trainer is not self._informed
            and await self._delivery.finish([trainer.name], reason)
        ):
            self._informed = trainer
