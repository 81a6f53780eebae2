"""Keeps a run's copy on shared storage up to date, one look at the run's folder at a time. Blocking.

Order: the newest checkpoint, then a backup of the store that fits it, then what is old is removed. A look that fails
anywhere leaves what was whole before it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from rhymed.remote.backups import Backups
from rhymed.remote.checkpoints import Checkpoints, name_of, stage, unstage
from rhymed.remote.layout import PUBLISHED, Backup, needed
from rhymed.remote.place import Place
from rhymed.run.checkpoint import Checkpoint, checkpoints_in, damage
from rhymed.run.layout import RunLayout
from rhymed.text import counted, size_of
from rhymed_store.shards.folders import stamps

log = logging.getLogger(__name__)


class Keep(NamedTuple):
    """How many are kept, and how often a backup is made."""

    checkpoints: int
    backups: int
    every: int  # training steps


class Copier:
    """`checkpoint`, `backup`: steps of the newest ones that are there; -1: none. `check`: raises where another head
    has the copy now; asked before anything counts or is removed there, as this one may have been asleep."""

    def __init__(self, run: Place, layout: RunLayout, keep: Keep, check: Callable[[], object] = lambda: None) -> None:
        self._run, self._layout, self._keep, self._check = run, layout, keep, check
        self._checkpoints, self._backups = Checkpoints(run), Backups(run)
        self._newest = ""  # name of the checkpoint that was uploaded last
        self._damaged: set[str] = set()  # names of checkpoints that are read once
        self._changed: object = None  # of the store, at the last backup
        self._failed = True  # the last backup, or perhaps that of an earlier process
        self.checkpoint = self.backup = -1
        self._published: dict[str, object] = {}  # name -> stamp of the file that was uploaded
        self.made: tuple[Backup, int] | None = None  # the newest backup of this object, and its new bytes

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
        if (last and self._changes() != self._changed) or trained >= max(self.backup, 0) + self._keep.every:
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
        started, changed = time.monotonic(), self._changes()
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
        self.backup, self._changed, self.made = trained, changed, (backup, new_bytes)
        self._prune()
        log.info(
            "backup %d of %s in %s: %s, %s of it new, in %.1f s",
            *(backup.number, counted(trained, "step"), self._run, size_of(backup.bytes), size_of(new_bytes)),
            time.monotonic() - started,
        )

    def _prune(self) -> None:
        self._check()
        kept = self._backups.prune(self._keep.backups)
        self._checkpoints.prune(needed(kept, self._steps(), self._keep.checkpoints), self._newest)

    def _steps(self) -> list[int]:
        return [one.step for one in self._checkpoints.uploaded()]

    def _publish(self) -> None:
        for name in PUBLISHED:
            file = self._layout.folder / name
            if file.is_file() and (stamp := _stamp(file)) != self._published.get(name):
                self._run.upload(file, name)
                self._published[name] = stamp

    def _changes(self) -> Sequence[tuple[int, int, int] | None]:
        return stamps(self._layout.database)


def _name_of(local: Checkpoint) -> str:
    """Empty: it is damaged, or has just been removed."""
    try:
        return name_of(local)
    except OSError:
        return ""


def _stamp(file: Path) -> tuple[int, int] | None:
    """Changes when the file is written to."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
