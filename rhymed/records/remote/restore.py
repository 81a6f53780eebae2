"""A run's folder made of its copy on shared storage, on any machine. Blocking.

The newest backup with a checkpoint that fits; where one is damaged, the one before. The folder appears whole or not
at all, and everything in it is verified.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rhymed.core import atomic
from rhymed.core.errors import ConfigError, StorageError, StoreError
from rhymed.core.run.lease import Lease
from rhymed.core.text import age, counted, quoted, size_of
from rhymed.records.remote.backups import Backups, fetch
from rhymed.records.remote.checkpoints import Checkpoints, Uploaded
from rhymed.records.remote.head import found_lease, refuse_head
from rhymed.records.remote.place import BACKUPS, CHUNKS, Backup, Place, fitting, is_kept, place_at
from rhymed_store.verify import verify

log = logging.getLogger(__name__)


class Restored(NamedTuple):
    folder: Path
    backup: Backup
    checkpoint: int  # steps; 0: none was needed
    newest: bool  # of the backups
    seen: Lease | None  # of the head that had the run


def restore(url: str, parent: Path, *, steps: int | None = None, take_over: bool = False) -> Restored:
    """Into a new folder `parent`/NAME. `steps`: the newest backup of at most so many trained steps. Raises
    `ConfigError`, `StorageError`."""
    remote, _, name = url.rstrip("/").rpartition("/")
    place = place_at(url)
    backups = Backups(place).all()
    if not backups:
        raise ConfigError(f"{place} has no whole backup of a run{_there(place)}")
    refuse_head(place, take_over=take_over)
    target = parent.expanduser().resolve() / name
    if target.exists():
        raise ConfigError(
            f"{target} exists already: continue it (rhymed run --resume {quoted(target)}), or choose another place:"
            " -o run.folder=FOLDER"
        )
    wanted = [backup for backup in backups if steps is None or backup.steps <= steps]
    if not wanted:
        raise ConfigError(f"{place} has no backup of at most {steps} steps: there are {_listed(backups)}")
    errors = []
    for backup, found in _candidates(wanted, Checkpoints(place).uploaded()):
        newest = backup is backups[-1]
        try:
            _write(place, backup, found, target, remote if newest else "")
        except (StorageError, StoreError) as error:
            errors.append(str(error))
            log.warning("the backup of %d steps cannot be restored: %s", backup.steps, error)
            continue
        except OSError as error:  # a full disk of this machine: older backups do not help
            raise ConfigError(f"{target} cannot be written: {error.strerror or error}") from None
        return Restored(target, backup, found.step if found else 0, newest, found_lease(place))
    why = "; ".join(errors) or "no checkpoint is there that fits one of them"
    raise StorageError(f"{place}: none of its backups can be restored ({_listed(backups)}): {why}")


def _candidates(backups: list[Backup], uploaded: list[Uploaded]) -> Iterator[tuple[Backup, Uploaded | None]]:
    """Pairs that fit, the best first."""
    for backup in reversed(backups):
        left = list(uploaded)
        while (step := fitting(backup, [one.step for one in left])) is not None:
            if not step:
                yield backup, None
                break
            one = next(one for one in reversed(left) if one.step == step)
            yield backup, one
            left.remove(one)


def _write(place: Place, backup: Backup, found: Uploaded | None, target: Path, remote: str) -> None:
    atomic.make_folder(target.parent)
    with atomic.new_folder(target) as part:
        for name, file in backup.files.items():
            if is_kept(name):
                fetch(place.child(CHUNKS), file, part / name)
        report = verify(part / "store")
        if not report.sound:
            raise StorageError(f"the store of {place}/{BACKUPS}/{backup.name} is damaged: {report.findings[0]}")
        if found:
            Checkpoints(place).download(found, part / "checkpoints")
        _adapt(part / "config.json", target, remote)
        (part / "store" / "lock.mdb").unlink(missing_ok=True)
        atomic.sync_folder(part / "store")
        atomic.sync_folder(part)
    atomic.sync(target.parent)


def _adapt(file: Path, target: Path, remote: str) -> None:
    """Its places are those of this machine. A folder of an older backup must not replace the newer ones."""
    try:
        settings: dict[str, Any] = json.loads(file.read_text())
        settings["run"] |= {"folder": str(target.parent), "name": target.name, "remote": remote}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StorageError(f"the backup has no configuration: {error}") from None
    atomic.write(file, json.dumps(settings, indent=2) + "\n", mode=0o600, synced=True)


def _listed(backups: list[Backup]) -> str:
    return ", ".join(counted(backup.steps, "step") for backup in backups)


def _there(place: Place) -> str:
    names = place.names()[:5]
    return f"; name the folder of one run, e.g. {place}/{names[0]}" if names else "; nothing is there"


def render(restored: Restored, url: str, now: float) -> str:
    """What is there, and what is lost."""
    backup, seen = restored.backup, restored.seen
    steps = counted(backup.steps, "step")
    found = f"the checkpoint after {counted(restored.checkpoint, 'step')}" if restored.checkpoint else "no checkpoint"
    lines = [
        f"restored {restored.folder} from {url}: {found}, and the samples of a backup after {steps}, made"
        f" {age(now - backup.at)} ago ({size_of(backup.bytes)})"
    ]
    if backup.steps > restored.checkpoint:
        lines.append(f"steps {restored.checkpoint + 1} to {backup.steps} are trained again, on the same samples")
    lost = f"lost: samples and steps after step {backup.steps}"
    if seen is not None and restored.newest:
        lost += f"; {seen.host} had trained {counted(seen.step, 'step')} when it last wrote"
    lines.append(lost)
    if not restored.newest:
        lines.append("a newer backup is there, so run.remote is off in this folder: choose another one with -o")
    return "\n".join(lines)
