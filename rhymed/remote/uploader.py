"""The process beside a run's store that keeps its copy on shared storage (`run.remote`) up to date.

It only reads the run's folder and asks no other process for anything, so it delays nothing. Whatever the storage
does, the run continues: what fails is tried again and shown as a line that begins with `waits`. It ends the run in
one case, where another head has taken it over.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from rhymed.config import Config
from rhymed.errors import FilesLost, RhymedError
from rhymed.remote import head, status
from rhymed.remote.copier import Copier, Keep
from rhymed.remote.status import Status
from rhymed.run import timeline
from rhymed.run.checkpoint import checkpoints_in
from rhymed.run.layout import RunLayout
from rhymed.service.service import Service

log = logging.getLogger(__name__)

Result = TypeVar("Result")

LOOK_S = 2.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 120.0
END_BYTES = 1 << 20  # of the timeline
LONG_S = 900.0  # of one look, after which it is reported
NICENESS = 10


class Uploader(Service):
    def __init__(self, config: Config, layout: RunLayout) -> None:
        super().__init__("uploader")
        self._config, self._layout = config, layout
        self._copier: Copier | None = None
        self._trouble, self._since = "", 0.0
        self._threads = ThreadPoolExecutor(2, "upload")  # one copies, the other renews the lease

    async def open(self) -> None:
        os.nice(NICENESS)
        self.spawn(self._renew())
        self.spawn(self._copy())

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _renew(self) -> None:
        """Raises `FilesLost`."""
        while True:
            try:
                await self._run(self._renew_once)
            except FilesLost:
                raise
            except (RhymedError, OSError) as error:
                log.warning("the lease is not renewed: %s", error)
            self._note()
            await asyncio.sleep(head.RENEW_S)

    def _renew_once(self) -> None:
        head.renew(head.place_of(self._config), self._layout.folder, trained(self._layout))

    async def _copy(self) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            self._since = time.monotonic()
            try:
                await self._run(self._look)
                self._trouble, pause_s = "", FIRST_PAUSE_S
            except FilesLost:
                raise
            except (RhymedError, OSError) as error:
                pause_s = min(LONGEST_PAUSE_S, pause_s * 2)
                self._trouble = f"the copy of this run is not kept up, and the run continues: {error}"
                log.warning("%s; tried again in %.0f s", self._trouble, pause_s)
            self._since = 0.0
            self._note()
            await asyncio.sleep(pause_s if self._trouble else LOOK_S)

    def _look(self) -> None:
        if self._copier is None:
            self._copier = copier(self._config, self._layout)
        self._copier.look(trained(self._layout))

    def _note(self) -> None:
        trouble, done = self._trouble, self._copier
        if not trouble and self._since and (busy_s := time.monotonic() - self._since) > LONG_S:
            trouble = f"the copy of this run has been written for {busy_s / 60:.0f} min: is run.remote too slow?"
        checkpoint, backup = (max(0, done.checkpoint), done.backup) if done else (0, -1)
        now = Status(at=time.time(), trouble=trouble, checkpoint=checkpoint, backup=backup)
        status.note(self._layout.folder, now)

    async def _run(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def copier(config: Config, layout: RunLayout) -> Copier:
    """Ready for `look`. Raises `ConfigError`, `StorageError`."""
    keep = Keep(config.trainer.keep_checkpoints, config.store.keep_backups, config.store.backup_every)
    made = Copier(head.place_of(config), layout, keep)
    made.start()
    return made


def finish(config: Config, layout: RunLayout) -> str:
    """Write what is new since the last look, and give the run back; returns what is there. For a run that has ended.
    Raises `ConfigError`, `FilesLost`, `StorageError`, `StoreError`."""
    place, steps = head.place_of(config), trained(layout)
    head.renew(place, layout.folder, steps)
    copies = copier(config, layout)
    copies.look(steps, last=True)
    head.release(place, layout.folder, steps)
    now = Status(at=time.time(), checkpoint=max(0, copies.checkpoint), backup=copies.backup, ended=True)
    status.note(layout.folder, now)
    return f"{place}: as of {max(0, copies.backup)} trained steps; on any machine: rhymed run --resume {place.url}"


def trained(layout: RunLayout) -> int:
    """Steps so far, as far as the end of the timeline shows."""
    events = timeline.read(layout.folder, newest_bytes=END_BYTES).events
    steps = [event.step + 1 for event in events if event.event == "trained" and event.step is not None]
    return max([*steps, *(one.step for one in checkpoints_in(layout.checkpoints))], default=0)
