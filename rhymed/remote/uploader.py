"""The process beside a run's store that keeps its copy on shared storage (`run.remote`) up to date.

It only reads the run's folder and asks no other process for anything, so it delays nothing. Whatever the storage
does, the run continues: what fails is tried again and shown as a line that begins with `waits`. It ends the run in
one case, where the copy belongs to another head or another run; or, where it cannot end the run (`stays`), it waits
until the copy may be had. Nothing is written before the lease is taken.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from rhymed.config import Config
from rhymed.errors import FilesLost, RhymedError
from rhymed.remote import head, status
from rhymed.remote.copier import Copier, Keep
from rhymed.remote.status import Status
from rhymed.run import timeline
from rhymed.run.checkpoint import checkpoints_in
from rhymed.run.layout import RunLayout
from rhymed.run.lease.lease import Lease
from rhymed.service.service import Service

log = logging.getLogger(__name__)

Result = TypeVar("Result")

LOOK_S = 2.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 120.0
WAIT_S = 5.0  # between two looks at the lease of another head
END_BYTES = 1 << 20  # of the timeline
LONG_S = 900.0  # of one look, after which it is reported
NICENESS = 10
NOT_KEPT = "the copy of this run is not kept up, and the run continues"


class Uploader(Service):
    """`take_over`: from another head, once it is certain that it does not renew its lease. `stays`: nobody calls
    `finish`, so it completes the copy itself at the end of the run, and waits for the run to be continued; whatever
    keeps it would only start it again, so it does not end because of another head, but says so once and waits."""

    def __init__(self, config: Config, layout: RunLayout, *, take_over: bool = False, stays: bool = False) -> None:
        super().__init__("uploader")
        self._config, self._layout = config, layout
        self._take_over, self._stays = take_over, stays
        self._taken = asyncio.Event()  # the lease is ours
        self._other: Lease | None = None  # the first one that was in the way
        self._copier: Copier | None = None
        self._trouble, self._since = "", 0.0
        self._lost = ""  # why the lease is not ours, while it waits for it
        self._ended = False  # everything is there, and the lease was given back
        self._threads = ThreadPoolExecutor(2, "upload")  # one copies, the other renews the lease

    async def open(self) -> None:
        os.nice(NICENESS)
        self.spawn(self._until_lost(self._hold()))
        self.spawn(self._until_lost(self._copy()))

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _until_lost(self, work: Coroutine[Any, Any, None]) -> None:
        """Raises `FilesLost`."""
        try:
            await work
        except FilesLost as error:
            self._trouble = str(error)
            self._note()
            raise

    async def _hold(self) -> None:
        """Take the lease, then renew it. Raises `FilesLost`."""
        while True:
            taken = self._taken.is_set()
            try:
                if not taken and await self._run(self._take):
                    self._trouble = self._lost = ""
                    self._taken.set()
                elif taken:
                    await self._run(self._renew)
            except FilesLost as error:
                self._let_go(error)
            except (RhymedError, OSError) as error:
                log.warning("the lease is not renewed: %s", error)
                self._trouble = self._trouble if taken else f"{NOT_KEPT}: {error}"
            self._note()
            await asyncio.sleep(head.RENEW_S if self._taken.is_set() else min(WAIT_S, head.RENEW_S))

    def _take(self) -> bool:
        """False: another head's lease is in the way, which may be alive. Raises `FilesLost`: it is."""
        place = head.place_of(self._config)
        found = head.of_another(place, self._layout.folder) if self._take_over else None
        if found is not None and found.at == (self._other or found).at:
            self._other = found
            self._trouble = f"the copy of this run waits for the lease of {found.host}, which has not given it back"
            return False
        if why := head.take(place, self._layout, take_over=self._take_over):
            raise FilesLost(why)
        return True

    def _let_go(self, error: FilesLost) -> None:
        """The copy is another's: nothing more is written there. Raises the error where that ends the run."""
        if not self._stays:
            raise error
        if not self._lost:
            log.error("%s: %s; waiting until this copy may be had", NOT_KEPT, error)
        self._lost = f"{NOT_KEPT}: {error}"
        self._taken.clear()

    def _renew(self) -> None:
        if not self._ended:
            head.renew(head.place_of(self._config), self._layout.folder, trained(self._layout))

    async def _copy(self) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            if not self._taken.is_set():
                await self._taken.wait()
                self._copier, self._ended = None, False  # another head may have changed what is there
            self._since = time.monotonic()
            try:
                await self._run(self._look)
                self._trouble, pause_s = "", FIRST_PAUSE_S
            except FilesLost as error:
                self._let_go(error)
            except (RhymedError, OSError) as error:
                pause_s = min(LONGEST_PAUSE_S, pause_s * 2)
                self._trouble = f"{NOT_KEPT}: {error}"
                log.warning("%s; tried again in %.0f s", self._trouble, pause_s)
            self._since = 0.0
            self._note()
            await asyncio.sleep(pause_s if self._trouble else LOOK_S)

    def _look(self) -> None:
        if self._copier is None:
            self._copier = copier(self._config, self._layout)
        steps, over = trained(self._layout), self._stays and is_over(self._layout)
        if self._ended and not over:  # it was continued
            head.renew(head.place_of(self._config), self._layout.folder, steps)
        self._copier.look(steps, last=over)
        if over and not self._ended:
            head.release(head.place_of(self._config), self._layout.folder, steps)
        self._ended = over

    def _note(self) -> None:
        trouble, done = self._lost or self._trouble, self._copier
        if not trouble and self._since and (busy_s := time.monotonic() - self._since) > LONG_S:
            trouble = f"the copy of this run has been written for {busy_s / 60:.0f} min: is run.remote too slow?"
        checkpoint, backup = (max(0, done.checkpoint), done.backup) if done else (0, -1)
        now = Status(at=time.time(), trouble=trouble, checkpoint=checkpoint, backup=backup, ended=self._ended)
        status.note(self._layout.folder, now)

    async def _run(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def copier(config: Config, layout: RunLayout) -> Copier:
    """Ready for `look`. Raises `ConfigError`, `StorageError`."""
    keep = Keep(config.trainer.keep_checkpoints, config.store.keep_backups, config.store.backup_every)
    place = head.place_of(config)
    made = Copier(place, layout, keep, lambda: head.check(place, layout.folder))
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


def is_over(layout: RunLayout) -> bool:
    """Its last checkpoint is written, as far as the end of the timeline shows, and nobody has continued it."""
    return timeline.read(layout.folder, newest_bytes=END_BYTES).finished
