"""Which head writes a run's copy: the lease there, asked for at the start and renewed while the run is alive.

Blocking. A head that finds the lease of another ends: its own folder has everything that it did.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from rhymed.core import atomic
from rhymed.core.config import Config
from rhymed.core.errors import ConfigError, FilesLost, StorageError
from rhymed.core.run import lease as leases
from rhymed.core.run.layout import RunLayout, ids_of, layout_of
from rhymed.core.run.lease import Lease
from rhymed.core.text import quoted
from rhymed.records.remote.backups import Backups
from rhymed.records.remote.checkpoints import Checkpoints
from rhymed.records.remote.place import LEASE, Place, open_place
from rhymed_store.position import position_of

OWNER = "owner"  # in the run's folder: a random word, which a restored folder does not inherit
RENEW_S = 30.0
STALE_S = 180.0


def place_of(config: Config) -> Place:
    """Of the run. Raises `ConfigError`."""
    return open_place(config.run.remote).child(config.run.name)


def claim(config: Config, layout: RunLayout, *, take_over: bool) -> None:
    """`take` at the start of a run. The folder exists. Raises `ConfigError`."""
    with _at_start():
        if why := take(place_of(config), layout, take_over=take_over):
            raise ConfigError(why)


def take(place: Place, layout: RunLayout, *, take_over: bool) -> str:
    """Take the lease. Returns why it may not be had, where another run's or another head's copy would be overwritten;
    empty: it is ours. Raises `StorageError`."""
    found, began = found_lease(place), (layout.folder / OWNER).exists()
    mine = _mine(layout.folder, 0, found)
    if why := leases.refusal(found, mine, STALE_S, take_over=take_over):
        return f"{place}: {why}"
    ours = began or (found is not None and leases.same_head(found, mine))
    if why := _foreign(place, layout) or ("" if ours else _half_copied(place)):
        return why
    place.write(LEASE, leases.encode(mine))
    return ""


def of_another(place: Place, folder: Path) -> Lease | None:
    """The lease of another head that may be alive; None: there is none. Raises `StorageError`."""
    found = found_lease(place)
    mine = _mine(folder, 0, found)
    return found if leases.refusal(found, mine, STALE_S, take_over=True) else None


def refuse_taken(config: Config) -> None:
    """For a new run, before its folder is made. Raises `ConfigError`."""
    with _at_start():
        place = place_of(config)
        if Backups(place).all() or Checkpoints(place).uploaded():
            raise ConfigError(
                f"{place} has the copy of an earlier run: choose another run.name, or continue that one: rhymed run"
                f" --resume {place.url}"
            )
        nobody, found = leases.here("", str(layout_of(config).folder), time.time()), found_lease(place)
        same_place = found is not None and (found.host, found.folder) == (nobody.host, nobody.folder)
        if found is not None and not same_place and leases.refusal(found, nobody, STALE_S, take_over=True):
            raise ConfigError(
                f"process {found.process} on {found.host} has begun a run here, folder {found.folder}, and writes to"
                f" {place}: choose another run.name"
            )
        place.write(LEASE, leases.encode(msgspec.structs.replace(nobody, released=True)))  # can it be written?


@contextlib.contextmanager
def _at_start() -> Iterator[None]:
    """Later, storage that does not answer is waited for; before the first step it may be a wrong address."""
    try:
        yield
    except StorageError as error:
        raise ConfigError(f"run.remote: {error}. To start without a copy: -o run.remote=") from None


def refuse_head(place: Place, *, take_over: bool) -> None:
    """Before a copy is fetched. Raises `ConfigError` where another head has the run, `StorageError`."""
    nobody = leases.here("", "", time.time())
    if why := leases.refusal(found_lease(place), nobody, STALE_S, take_over=take_over):
        raise ConfigError(f"{place}: {why}")


def renew(place: Place, folder: Path, step: int) -> None:
    """Raises `FilesLost` where another head has taken over, `StorageError`."""
    place.write(LEASE, leases.encode(check(place, folder, step)))


def check(place: Place, folder: Path, step: int = 0) -> Lease:
    """This head's lease, to be written. Raises `FilesLost` where another head has taken over, `StorageError`."""
    found = found_lease(place)
    mine = _mine(folder, step, found)
    if found is not None and not found.released and not leases.same_head(found, mine):
        raise FilesLost(
            f"the head on {found.host} (process {found.process}, folder {found.folder}) has taken over this run at"
            f" {place}: this one stops. Its folder {folder} keeps all that it did"
        )
    return mine


def release(place: Place, folder: Path, step: int) -> None:
    """Everything is written: another machine may continue at once. Raises as `renew`."""
    renew(place, folder, step)
    mine = _mine(folder, step)
    place.write(LEASE, leases.encode(msgspec.structs.replace(mine, released=True)))


def _mine(folder: Path, step: int = 0, found: Lease | None = None) -> Lease:
    """`found`: if the folder's file is gone, and this lease is of this machine and folder, it is ours."""
    file, here = folder / OWNER, leases.here("", str(folder), time.time(), step)
    if not file.exists():
        ours = found is not None and leases.same_head(msgspec.structs.replace(found, owner=""), here)
        owner = found.owner if found is not None and ours else secrets.token_hex(8)
        atomic.write(file, f"{owner}\n", synced=True)
    return msgspec.structs.replace(here, owner=file.read_text().strip())


def found_lease(place: Place) -> Lease | None:
    return leases.decode(place.read(LEASE))


def _half_copied(place: Place) -> str:
    """Why a run that has never written there does not; empty: it may."""
    if Backups(place).all() or not Checkpoints(place).uploaded():
        return ""
    return f"{place} has checkpoints of an earlier run: choose another run.name or run.remote"


def _foreign(place: Place, layout: RunLayout) -> str:
    """Why the copy at this place cannot be continued from this folder; empty: it can."""
    backups, ids = Backups(place).all(), ids_of(layout.folder)
    if not backups:
        return ""
    newest = backups[-1]
    if newest.ids and ids and not set(newest.ids) & set(ids):
        return (
            f"{place} has the copy of another run (id {newest.ids[-1]}; this one is {ids[-1]}): choose another"
            " run.remote"
        )
    store = position_of(layout.database)
    if store is not None and store.end >= newest.end:
        return ""
    here = f"of {store.end} steps" if store else "no store"
    return (
        f"{place} is ahead of {layout.folder}: its backup has samples of {newest.end} steps, the folder {here}."
        f" Continue from there, in another folder: rhymed run --resume {quoted(place.url)} -o run.folder=FOLDER; or"
        " continue this one with another run.remote"
    )
