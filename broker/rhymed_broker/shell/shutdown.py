"""The last checkpoint: a run is not finished before the trainer has written it and left.

The trainer may take its time, as long as it is here: its heartbeats and `trainer.stall_s` bound that. If it dies, it
comes back, at an earlier step perhaps, and then the run goes on. Knows how far checkpoints have come, and who left.
"""

from __future__ import annotations

import asyncio
import logging
import time

from rhymed.errors import CheckpointLost
from rhymed_broker.ledger.ledger import Ledger
from rhymed_broker.shell.delivery import Delivery

log = logging.getLogger(__name__)

ABSENT_S = 600.0  # for a trainer that died to come back: as long as others wait for it
LEAVE_S = 30.0  # for a trainer that has nothing left to do
LOOK_S = 0.1


class Shutdown:
    def __init__(self, ledger: Ledger, delivery: Delivery) -> None:
        self.waits = ""  # what the end waits for, for people
        self._ledger, self._delivery = ledger, delivery
        self._saved = 0  # steps in the newest checkpoint that was told of
        self._told: object = None  # the trainer that knows of the end

    def roll_back(self) -> None:
        """What later steps' checkpoints hold counts no more."""
        self._saved = 0

    def checkpointed(self, steps: int) -> None:
        self._saved = max(self._saved, steps)

    async def last_checkpoint(self, reason: str) -> bool:
        """Wait for it, and for the trainer to leave. False: the trainer was set back, and the run goes on.

        Raises `CheckpointLost` when nobody is here to write it.
        """
        self._told = None
        begun = still = time.monotonic()  # `still`: since when there is nothing to wait for
        try:
            while self._ledger.finished:
                now, trainer = time.monotonic(), self._ledger.workers.trainer
                saved = self._saved >= self._ledger.steps
                if trainer is None and saved:
                    return True
                if trainer is not None and not saved:
                    still = now
                    self.waits = f"the trainer writes the last checkpoint, {now - begun:.0f} s"
                elif not saved:
                    self.waits = f"no trainer is here to write the last checkpoint, {now - still:.0f} s"
                if now - still > (LEAVE_S if saved else ABSENT_S):
                    self._give_up(saved)
                    return True
                await self._tell(reason)
                await asyncio.sleep(LOOK_S)
            return False
        finally:
            self.waits = ""

    def _give_up(self, saved: bool) -> None:
        if not saved:
            raise CheckpointLost(
                f"all {self._ledger.steps} steps are trained, but no trainer has been here for {ABSENT_S:.0f} s to"
                " write the last checkpoint: resume the run, and it trains again what is not in one"
            )
        log.warning("the trainer has not left %g s after the last checkpoint", LEAVE_S)

    async def _tell(self, reason: str) -> None:
        trainer = self._ledger.workers.trainer
        if trainer is not None and trainer is not self._told and await self._delivery.finish([trainer.name], reason):
            self._told = trainer
