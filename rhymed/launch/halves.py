"""Whether a run that is to be resumed has both of its halves, and whether they belong together.

A run is in two places: the store has its samples and the journal of what was trained, the checkpoints have its
weights. One without the other cannot continue, and one with another's trains on what it has not generated. Starts
nothing; `disagreement` is pure.

Ids and positions are compared, not samples. With `store.durability = "sync"` that is enough: what the run's own store
acknowledged before a checkpoint was written is on the disk. With "async" a power failure may take the store's newest
second, but no checkpoint. A store that ends before the newest checkpoint is refused, and one of several that is older
than the others; single samples before it that are missing or damaged are not noticed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rhymed import atomic
from rhymed.config import Config
from rhymed.errors import ConfigError, RunMismatch
from rhymed.run import checkpoint
from rhymed.run import folder as runs
from rhymed.run.layout import RunLayout, store_name
from rhymed.run.state import has_worked
from rhymed.text import counted
from rhymed_store.position import Position, begin_at, position_of
from rhymed_store.shards import merge
from rhymed_store.shards.folders import any_open


class Halves(NamedTuple):
    """What a run's folder holds."""

    ids: Sequence[str]  # of the run, the newest last; empty: unknown
    begun: bool  # it has worked, so it had a store
    store: Position | None  # None: no file, or nothing in it
    steps: int = 0  # in the newest checkpoint; 0: there is none
    run: str = ""  # id of the run that wrote that checkpoint; empty: unknown
    place: str = store_name(0)  # the folder that `store` is of; of several, all together if none is foreign or older
    others: int = 0  # where `store` is older than the run's others: steps of which these had everything


def read(layout: RunLayout) -> Halves:
    """Blocking. Raises `ConfigError`, `StoreDamaged`, `StoreError`."""
    found = checkpoint.checkpoints_in(layout.checkpoints)
    steps, run = (found[-1].step, checkpoint.run_of(found[-1].folder)) if found else (0, "")
    ids = runs.ids_of(layout.folder)
    own = _of_stores([position_of(one.database) for one in layout.stores], ids)
    return Halves(ids, has_worked(layout), own[0], steps, run, *own[1:])


def _of_stores(positions: Sequence[Position | None], ids: Sequence[str]) -> tuple[Position | None, str, int]:
    """The first of the stores that cannot be this run's, or is older than the others, or all together; its folder's
    name; and `Halves.others`."""
    found = []
    for number, one in enumerate(positions):
        if one is None or not (one.claimed or one.id) or (one.id and ids and one.id != ids[-1]):
            return one, store_name(number), 0
        found.append(one)
    if (old := merge.outdated(found)) is not None:
        return found[old], store_name(old), max(one.forgotten for one in found)
    return merge.positions(found), store_name(0), 0


def check(layout: RunLayout) -> None:
    """Raises `RunMismatch` if the halves do not belong together, and the errors of `read`. Blocking.

    A run whose file of ids is gone takes the id that its store or its checkpoint has.
    """
    found = read(layout)
    if why := disagreement(found, layout.folder):
        raise RunMismatch(why)
    if not found.ids and (id := (found.store.id if found.store else "") or found.run):
        runs.add_id(layout.folder, id)


def disagreement(found: Halves, folder: Path) -> str:
    """Why the run cannot be resumed, and the ways out; empty: its halves belong together."""
    return _store(found, folder) or _checkpoints(found, folder)


def _store(found: Halves, folder: Path) -> str:
    """What is wrong with the store."""
    store, place = found.store, folder / found.place
    why = ""
    if store is None or not (store.claimed or store.id):
        what = f"{place / 'data.mdb'} is missing or empty" if store is None else f"{place} is new, no run has used it"
        why = f"{what}, but this run has worked{_trained(found)}" if found.begun else ""
    elif store.id and found.ids and store.id != found.ids[-1]:
        left = store.id in found.ids
        whose = "what this run left behind with --without-history" if left else "the store of another run"
        why = f"{place} is {whose} (id {store.id}; this run is {found.ids[-1]})"
    elif found.others:
        why = (
            f"{place} is older than the run's other stores: it has all samples of {counted(store.settled, 'step')},"
            f" they of {found.others}"
        )
    elif store.end < found.steps:
        why = (
            f"{place} is older than the checkpoints: {store}, the newest checkpoint is after"
            f" {counted(found.steps, 'step')}"
        )
    if not why:
        return ""
    back = (
        f"put the run's own {found.place}/data.mdb back, from a copy of the folder or `rhymed history backup`, if it"
        f" is not older than the {'other stores' if found.others else 'checkpoints'}"
    )
    return f"{why}. Either {back}{_without(found, folder)}"


def _checkpoints(found: Halves, folder: Path) -> str:
    """What is wrong with the checkpoints, where the store is the run's."""
    forgotten, place = found.store.forgotten if found.store else 0, folder / "checkpoints"
    if found.run and found.ids and found.run not in found.ids:
        return (
            f"the newest checkpoint in {place} was written by another run (id {found.run}; this one is"
            f" {found.ids[-1]}): put this run's checkpoints back, or start a new run"
        )
    if found.steps >= forgotten:
        return ""
    newest = f"the newest one is after {counted(found.steps, 'step')}" if found.steps else "there is none"
    return (
        f"the checkpoints in {place} are behind the store: {newest}, and log-probs of the first"
        f" {counted(forgotten, 'step')}, which a later one covered, are deleted. Either put a checkpoint of at least"
        f" {counted(forgotten, 'step')} back{_without(found, folder)}"
    )


def _trained(found: Halves) -> str:
    return f", and has checkpoints up to {counted(found.steps, 'step')}" if found.steps else ""


def _without(found: Halves, folder: Path) -> str:
    if not found.steps:
        return ", or start a new run"
    return (
        ", or continue from the newest checkpoint without the samples of earlier steps:"
        f" rhymed run --resume {folder} --without-history"
    )


def without_history(config: Config, layout: RunLayout) -> str:
    """Put the store aside, and an empty one in its place that begins at the newest intact checkpoint. Returns what
    was done. Blocking.

    Raises `ConfigError` without a checkpoint, or if the run is alive, and `CheckpointLost` if all are damaged.
    """
    with runs.hold(layout):
        newest = checkpoint.resume(layout.checkpoints, runs.ids_of(layout.folder))
        if newest is None:
            raise ConfigError(
                f"--without-history: {layout.checkpoints} has no checkpoint to continue from: start a new run"
            )
        if any_open(layout.database):
            raise ConfigError(f"a store process has {layout.database} open: end the run of {layout.folder} first")
        id, aside = runs.new_id(), []
        for store in (one.database for one in layout.stores):
            aside.append(_aside(store))
            with atomic.new_folder(store) as part:
                begin_at(part, int(config.store.map_gib * 2**30), newest.step, id)
        atomic.sync(layout.folder)
        runs.add_id(layout.folder, id)
    kept = f"; the old store is {' and '.join(map(str, old))}" if (old := [one for one in aside if one]) else ""
    return f"continuing after {counted(newest.step, 'step')} with an empty history{kept}"


def _aside(store: Path) -> Path | None:
    """Gives the store's folder another name. None: there is none."""
    if not store.exists():
        return None
    number = 1
    while (old := store.with_name(f"{store.name}.old-{number}")).exists():
        number += 1
    return store.rename(old)
