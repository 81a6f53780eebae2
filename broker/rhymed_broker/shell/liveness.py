"""The ledger's tick: workers that are silent for too long are lost, and refused requests are repeated.

Invariant: time in which this process did not run (it was suspended) does not count as a worker's silence, since the
messages of that time are still unread.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from rhymed.config import Schedule
from rhymed.service.logline import cause
from rhymed_broker.ledger.ledger import Ledger
from rhymed_broker.shell.delivery import Delivery
from rhymed_broker.shell.turns import Turns
from rhymed_broker.status.timeline import TimelineRecorder

log = logging.getLogger(__name__)

LATE_S = 1.0  # a tick that is later than this: the process was suspended


class Liveness:
    def __init__(
        self, schedule: Schedule, ledger: Ledger, turns: Turns, delivery: Delivery, timeline: TimelineRecorder
    ) -> None:
        self._schedule, self._ledger, self._turns = schedule, ledger, turns
        self._delivery, self._timeline = delivery, timeline

    async def run(self, wake: Callable[[], None]) -> None:
        """`wake`: the ledger has changed."""
        pause_s = min(1.0, self._schedule.heartbeat_s)
        last = time.monotonic()
        while True:
            await asyncio.sleep(pause_s)
            now = time.monotonic()
            if (late_s := now - last - pause_s) > LATE_S:
                self._excuse(late_s, now)
            last = now
            async with self._turns:  # what arrived before `now` is handled before it
                await self._tick(now)
            wake()

    async def _tick(self, now: float) -> None:
        for name, held in (await self._turns.run(self._ledger.tick.slices(now))).items():
            fields = cause("lost", held, worker=name)
            log.warning("%s is lost: silent for more than %g s", name, self._schedule.lost_after_s, extra=fields)
            self._delivery.forget(name)
            self._timeline.gone("lost", name, now)

    def _excuse(self, late_s: float, now: float) -> None:
        log.warning("this process did not run for %.1f s: that time does not count as silence of workers", late_s)
        for worker in self._ledger.workers.by_name.values():
            worker.seen = min(now, worker.seen + late_s)
