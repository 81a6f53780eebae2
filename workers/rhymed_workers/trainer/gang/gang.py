"""Rank 0's side of a gang: starts the followers of its node, waits for all ranks, and sees when one dies.

A gang is never repaired: with one rank dead the process of rank 0 ends with an error, and what restarts it starts all
of them. The newest checkpoint, the store's samples and the broker's journal are what is left; nothing is generated
again. `generation` distinguishes the logs of one gang from those of the next.
"""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

from rhymed.config import Config
from rhymed.errors import RhymedError, TrainerError
from rhymed.service.children import exit_reason
from rhymed_workers.trainer.gang.followers import Followers
from rhymed_workers.trainer.gang.meeting import Meeting, join, listen
from rhymed_workers.trainer.gang.orders import Order
from rhymed_workers.trainer.gang.place import device_of, threads, token_of
from rhymed_workers.trainer.gang.size import seats
from rhymed_workers.trainer.ranks.group import LONG, Group

log = logging.getLogger(__name__)

LOOK_S = 0.2
LOST_S = 2.0
JOIN_S = 600.0  # for all ranks to arrive
REMIND_S = 30.0
SILENT_S = 60.0  # of a rank on another machine; a process that dies closes its connections, which shows at once


class Gang:
    def __init__(self, config: Config, generation: str) -> None:
        """Starts the processes; call it on the main thread. Raises `ConfigError`, `TrainerError`."""
        self._config = config
        self._seat, *others = seats(config.trainer, 0)
        self._device = device_of(config.trainer, self._seat)
        listener, self.address = listen(config.net.ranks, config.net.bind)
        self._meeting = Meeting(self.address, listener)
        self._meeting.begin(generation)
        self._token = token_of(config, generation)
        if self._seat.nodes > 1:
            self._token.parent.mkdir(parents=True, exist_ok=True)
            self._token.touch()
        self._watched, self._saving = self._meeting.again(), self._meeting.again()
        self._followers = Followers(config, self.address, others)
        self._heard: dict[int, tuple[int, float]] = {}  # ranks elsewhere: signs of life, when last
        self._closed = False

    @property
    def size(self) -> int:
        return self._seat.size

    def close(self) -> None:
        """Ends all ranks but this one."""
        self._closed = True
        self._followers.close()

    async def watch(self) -> None:
        """Raises the error of the first rank that dies."""
        while True:
            await asyncio.sleep(LOOK_S)
            if error := self._problem():
                raise error

    def enter(self) -> Group:
        """Waits for all ranks. Blocking. Raises `TrainerError`."""
        threads(self._config.trainer)
        self._meeting.arrive(0)
        try:
            self._wait_for_all()
        finally:
            self._token.unlink(missing_ok=True)
        return Group(join(self._meeting, self._seat, self._device, self._config.trainer.stall_s))

    def order(self, order: Order) -> None:
        self._meeting.give(order)

    def digests(self, folder: Path) -> dict[str, str]:
        """Of the files that the other ranks write there, when they have. Raises `TrainerError`."""
        return self._saving.get_digests(self.size, str(folder), LONG)

    def lost(self) -> RhymedError | None:
        """Which rank's death an exchange may have failed of, if one is seen within a moment. Blocking."""
        until = time.monotonic() + LOST_S
        while (error := self._problem()) is None and time.monotonic() < until:
            time.sleep(LOOK_S)
        return error

    def _wait_for_all(self) -> None:
        started = reminded = time.monotonic()
        while len(here := self._meeting.arrived(self.size)) < self.size:
            now, missing = time.monotonic(), sorted(set(range(self.size)) - set(here))
            nodes = sorted({rank // self._seat.each for rank in missing} - {0})
            start = "; start there: " + ", ".join(f"rhymed worker --role trainer --node {node}" for node in nodes)
            waiting = f"ranks {', '.join(map(str, missing))} of the trainer are missing{start if nodes else ''}"
            if now - started > JOIN_S:
                raise TrainerError(f"{waiting}: waited {JOIN_S:g} s for them at {self.address}")
            if now - reminded > REMIND_S:
                log.info("%s", waiting)
                reminded = now
            time.sleep(LOOK_S)

    def _problem(self) -> RhymedError | None:
        if self._closed:
            return None
        if ended := self._followers.ended():
            rank, status = ended
            return self._watched.error_of(rank) or TrainerError(
                f"rank {rank} of the trainer ended ({exit_reason(status)}): all ranks begin again at the newest"
                " checkpoint"
            )
        return self._silent()

    def _silent(self) -> RhymedError | None:
        """A rank on another node that has been silent for too long."""
        now = time.monotonic()
        for rank in range(self._seat.each, self.size):
            beats, before = self._watched.beats_of(rank), self._heard.get(rank)
            if beats and (before is None or beats != before[0]):
                self._heard[rank] = beats, now
            elif before is not None and now - before[1] > SILENT_S:
                return self._watched.error_of(rank) or TrainerError(
                    f"rank {rank} of the trainer has been silent for {SILENT_S:g} s: all ranks begin again at the"
                    " newest checkpoint"
                )
        return None
