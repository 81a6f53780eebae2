"""`rhymed history backup RUN URL`, and the list of what a copy holds. Blocking."""

from __future__ import annotations

from pathlib import Path

from rhymed.config.load import load_run
from rhymed.errors import ConfigError
from rhymed.remote.backups import Backups
from rhymed.remote.checkpoints import Checkpoints
from rhymed.remote.copier import Copier, Keep
from rhymed.remote.head import refuse_head
from rhymed.remote.layout import Backup, fitting
from rhymed.remote.place import place_at
from rhymed.remote.uploader import trained
from rhymed.run.folder import ids_of, layout_of_folder
from rhymed.text import age, counted, size_of


def back_up(run: Path, url: str) -> str:
    """Write what is new of a run, alive or not, into the copy at `url`. Raises `ConfigError`, `StorageError`,
    `StoreError`."""
    config, layout, place = load_run(run), layout_of_folder(run), place_at(url)
    refuse_head(place, take_over=True)  # also this run's own uploader, which writes there already
    ids, there = ids_of(layout.folder), Backups(place).all()
    if there and there[-1].ids and not set(there[-1].ids) & set(ids):
        raise ConfigError(f"{place} has the copy of another run (id {there[-1].ids[-1]}): name another place")
    keep = Keep(config.trainer.keep_checkpoints, config.store.keep_backups, config.store.backup_every)
    copier = Copier(place, layout, keep)
    copier.start()
    copier.look(trained(layout), last=True)
    if (made := copier.made) is None:
        raise ConfigError(f"{run} has no store yet, or no checkpoint that fits it: try again later")
    backup, new_bytes = made
    return (
        f"{place}: the backup after {counted(backup.steps, 'step')}, {size_of(backup.bytes)}, of which"
        f" {size_of(new_bytes)} were new; rhymed run --resume {place.url}"
    )


def listed(url: str, now: float) -> str:
    """Its backups, each with the checkpoint that fits. Raises `ConfigError`, `StorageError`."""
    place = place_at(url)
    steps = [one.step for one in Checkpoints(place).uploaded()]
    lines = [_line(backup, fitting(backup, steps), now) for backup in Backups(place).all()]
    if not lines:
        raise ConfigError(f"{place} has no whole backup of a run")
    return "\n".join([f"{place}, oldest first:", *lines])


def _line(backup: Backup, checkpoint: int | None, now: float) -> str:
    fits = {None: "no checkpoint that fits", 0: "from the beginning"}.get(checkpoint, f"checkpoint {checkpoint}")
    return f"  after {counted(backup.steps, 'step')}, {age(now - backup.at)} ago, {size_of(backup.bytes)}, {fits}"
