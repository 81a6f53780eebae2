"""The process next to a run's store that keeps its copy on shared storage (`run.remote`) up to date.

It only reads the run's folder and asks no other process for anything, so it delays nothing. Whatever the storage
does, the run continues: what fails is tried again and shown as a line that begins with `waits`. It ends the run in
one case, where the copy belongs to another head or another run. Nothing is written before the lease is taken.

`finish` does it once (`rhymed upload --once`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from rhymed.core.config import Config
from rhymed.core.errors import ConfigError, FilesLost, RhymedError
from rhymed.core.run import state, timeline
from rhymed.core.run.checkpoint import Checkpoint, checkpoints_in, damage, newest_sealed
from rhymed.core.run.layout import RunLayout
from rhymed.core.run.lease import Lease
from rhymed.core.run.state import Status
from rhymed.core.service.service import Service
from rhymed.core.text import counted, quoted, size_of
from rhymed.records.remote import head
from rhymed.records.remote.backups import Backups
from rhymed.records.remote.checkpoints import Checkpoints, name_of, stage, unstage
from rhymed.records.remote.place import PUBLISHED, Place, needed

# Keeps a run's copy on shared storage up to date, one look at the run's folder at a time. Blocking.
#
# Order: the newest checkpoint, then a backup of the store that fits it, then what is old is removed. A look that
# fails anywhere leaves what was whole before it.

log = logging.getLogger(__name__)


class Copier:
    """`checkpoint`, `backup`: steps of the newest ones that are there; -1: none. `check`: raises where another head
    has the copy now; asked before anything counts or is removed there, as this one may have been asleep."""

    def __init__(
        self, run: Place, layout: RunLayout, config: Config, check: Callable[[], object] = lambda: None
    ) -> None:
        self._run, self._layout, self._config, self._check = run, layout, config, check
        self._checkpoints, self._backups = Checkpoints(run), Backups(run)
        self._newest = ""  # name of the checkpoint that was uploaded last
        self._damaged: set[str] = set()  # names of checkpoints that are read once
        self._failed = True  # the last backup, or perhaps that of an earlier process
        self.checkpoint = self.backup = -1

    def start(self) -> None:
        """Remove checkpoints that neither a backup can use nor this run has: they are of a head that was lost before
        its next backup. Raises `StorageError`."""
        unstage(self._layout.checkpoints)
        self._check()
        backups, uploaded = self._backups.all(), self._checkpoints.uploaded()
        self.backup = backups[-1].steps if backups else -1
        ours = {name for one in checkpoints_in(self._layout.checkpoints) if (name := _name_of(one))}
        end = backups[-1].end if backups else -1
        usable = {one.step for one in uploaded if one.step <= end or one.name in ours}
        self._checkpoints.prune(usable, "")
        self.checkpoint = max(usable, default=-1)

    def look(self, trained: int, *, last: bool = False) -> None:
        """`trained`: steps so far; `last`: nothing will change any more. Raises `StorageError`, `StoreError`,
        `OSError`."""
        self._upload_newest()
        if last or trained >= max(self.backup, 0) + self._config.store.backup_every:
            self._back_up(trained)
        if last:
            self._publish()

    def _upload_newest(self) -> None:
        for local in reversed(checkpoints_in(self._layout.checkpoints)):
            try:
                if name_of(local) == self._newest or self._upload(local):
                    return
            except FileNotFoundError:  # the trainer has just removed it
                continue

    def _upload(self, local: Checkpoint) -> bool:
        """False: it is damaged."""
        started, name = time.monotonic(), name_of(local)
        if name in self._damaged:
            return False
        if name not in {one.name for one in self._checkpoints.uploaded()}:
            staged = stage(local)
            try:
                if why := damage(staged.folder):
                    log.warning("checkpoint %s is damaged and is not uploaded: %s", local.folder, why)
                    self._damaged.add(name)
                    return False
                self._check()
                self._checkpoints.upload(staged)
            finally:
                unstage(self._layout.checkpoints)
            took_s = time.monotonic() - started
            log.info("checkpoint of %s is in %s, in %.1f s", counted(local.step, "step"), self._run, took_s)
        self._newest, self.checkpoint = name, local.step
        self._prune()
        return True

    def _back_up(self, trained: int) -> None:
        if not (self._layout.database / "data.mdb").exists():
            return
        started = time.monotonic()
        self._check()
        earlier = self._backups.all()
        if self._failed:
            self._backups.sweep(earlier)
        self._failed = True
        backup, new_bytes = self._backups.make(self._layout.folder, trained, earlier)
        self._check()
        if not self._backups.seal(backup, self._steps()):
            self._upload_newest()  # a newer one was written meanwhile, and log-probs before it deleted
            if not self._backups.seal(backup, self._steps()):
                log.info("the backup of step %d waits for a checkpoint from step %d on", trained, backup.forgotten)
                return
        self._failed = False
        self.backup = trained
        self._prune()
        log.info(
            "backup %d of %s in %s: %s, %s of it new, in %.1f s",
            *(backup.number, counted(trained, "step"), self._run, size_of(backup.bytes), size_of(new_bytes)),
            time.monotonic() - started,
        )

    def _prune(self) -> None:
        self._check()
        kept = self._backups.prune(self._config.store.keep_backups)
        self._checkpoints.prune(needed(kept, self._steps(), self._config.trainer.keep_checkpoints), self._newest)

    def _steps(self) -> list[int]:
        return [one.step for one in self._checkpoints.uploaded()]

    def _publish(self) -> None:
        for name in PUBLISHED:
            if (file := self._layout.folder / name).is_file():
                self._run.upload(file, name)


def _name_of(local: Checkpoint) -> str:
    """Empty: it is damaged, or has just been removed."""
    try:
        return name_of(local)
    except OSError:
        return ""


Result = TypeVar("Result")

LOOK_S = 2.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 120.0
WAIT_S = 5.0  # between two looks at the lease of another head
END_BYTES = 1 << 20  # of the timeline
LONG_S = 900.0  # of one look, after which it is reported
NICENESS = 10
NOT_KEPT = "the copy of this run is not kept up, and the run continues"


class Uploader(Service):
    """`take_over`: from another head, once it is certain that it does not renew its lease. `finish` completes the
    copy when the run has ended."""

    def __init__(self, config: Config, layout: RunLayout, *, take_over: bool = False) -> None:
        super().__init__("uploader")
        self._config, self._layout, self._take_over = config, layout, take_over
        self._taken = asyncio.Event()  # the lease is ours
        self._other: Lease | None = None  # the first one that was in the way
        self._copier: Copier | None = None
        self._trouble, self._since = "", 0.0
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
                if taken:
                    await self._run(self._renew)
                elif await self._run(self._take):
                    self._trouble = ""
                    self._taken.set()
            except FilesLost:
                raise
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

    def _renew(self) -> None:
        head.renew(head.place_of(self._config), self._layout.folder, trained(self._layout))

    async def _copy(self) -> None:
        """Raises `FilesLost`."""
        pause_s = FIRST_PAUSE_S
        await self._taken.wait()
        while True:
            self._since = time.monotonic()
            try:
                await self._run(self._look)
                self._trouble, pause_s = "", FIRST_PAUSE_S
            except FilesLost:
                raise
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
        self._copier.look(trained(self._layout))

    def _note(self) -> None:
        trouble, done = self._trouble, self._copier
        if not trouble and self._since and (busy_s := time.monotonic() - self._since) > LONG_S:
            trouble = f"the copy of this run has been written for {busy_s / 60:.0f} min: is run.remote too slow?"
        checkpoint, backup = (max(0, done.checkpoint), done.backup) if done else (0, -1)
        now = Status(at=time.time(), trouble=trouble, checkpoint=checkpoint, backup=backup)
        state.note(self._layout.folder, now)

    async def _run(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def copier(config: Config, layout: RunLayout) -> Copier:
    """Ready for `look`. Raises `ConfigError`, `StorageError`."""
    place = head.place_of(config)
    made = Copier(place, layout, config, lambda: head.check(place, layout.folder))
    made.start()
    return made


def finish(config: Config, layout: RunLayout) -> str:
    """Write what is new since the last look, and give the run back; returns what is there. For a run whose uploader
    does not work: it has ended, or the copy is made by hand. Raises `ConfigError`, `FilesLost`, `StorageError`,
    `StoreError`."""
    place, steps = head.place_of(config), trained(layout)
    head.renew(place, layout.folder, steps)
    copies = copier(config, layout)
    copies.look(steps, last=True)
    if copies.backup < 0:
        raise ConfigError(f"{layout.folder} has no store yet, or no checkpoint that fits it: try again later")
    head.release(place, layout.folder, steps)
    now = Status(at=time.time(), checkpoint=max(0, copies.checkpoint), backup=copies.backup, ended=True)
    state.note(layout.folder, now)
    resume = f"rhymed run --resume {quoted(place.url)}"
    return f"{place}: as of {max(0, copies.backup)} trained steps; on any machine: {resume}"


def trained(layout: RunLayout) -> int:
    """Steps so far, as far as the end of the timeline shows."""
    events = timeline.read(layout.folder, newest_bytes=END_BYTES).events
    steps = [event.step + 1 for event in events if event.event == "trained" and event.step is not None]
    found = newest_sealed(layout.checkpoints)
    return max([*steps, *([found.step] if found else [])], default=0)
