"""Whether a run that is to be resumed has both of its halves, and whether they belong together.

`check` compares them, and `finished` says whether anything is left to do. A run is in two places: the store has its
samples and the journal of what was trained, the checkpoints have its weights. One without the other cannot continue,
and one with another's trains on what it has not generated. Starts nothing; `disagreement` is pure.

Ids and positions are compared, not samples. With `store.durability = "sync"` that is enough: what the run's own store
acknowledged before a checkpoint was written is on the disk. With "async" a power failure may take the store's newest
second, but no checkpoint. A store that ends before the newest checkpoint is refused; single samples before it that
are missing or damaged are not noticed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rhymed.core import atomic
from rhymed.core.config import Config
from rhymed.core.errors import ConfigError, RunMismatch
from rhymed.core.run import checkpoint, timeline
from rhymed.core.run import folder as runs
from rhymed.core.run.folder import read_evaluations, read_metrics
from rhymed.core.run.layout import RunLayout, ids_of
from rhymed.core.run.state import has_worked
from rhymed.core.text import counted, quoted
from rhymed.records.history.compare.audit import planned
from rhymed_store.database.transactions import is_open
from rhymed_store.position import Position, begin_at, position_of


class Found(NamedTuple):
    """What a run's folder holds."""

    ids: Sequence[str]  # of the run, the newest last; empty: unknown
    begun: bool  # it has worked, so it had a store
    store: Position | None  # None: no file, or nothing in it
    steps: int = 0  # in the newest checkpoint; 0: there is none
    run: str = ""  # id of the run that wrote that checkpoint; empty: unknown


def read(layout: RunLayout) -> Found:
    """Blocking. Raises `ConfigError`, `StoreDamaged`, `StoreError`."""
    found = checkpoint.newest_sealed(layout.checkpoints)
    steps, run = (found.step, checkpoint.run_of(found.folder)) if found else (0, "")
    ids = ids_of(layout.folder)
    return Found(ids, has_worked(layout), position_of(layout.database), steps, run)


def check(layout: RunLayout) -> None:
    """Raises `RunMismatch` if the halves do not belong together, and the errors of `read`. Blocking.

    A run whose file of ids is gone takes the id that its store or its checkpoint has.
    """
    found = read(layout)
    if why := disagreement(found, layout.folder):
        raise RunMismatch(why)
    if not found.ids and (id := (found.store.id if found.store else "") or found.run):
        runs.add_id(layout.folder, id)


def disagreement(found: Found, folder: Path) -> str:
    """Why the run cannot be resumed, and the ways out; empty: its halves belong together."""
    return _store(found, folder) or _checkpoints(found, folder)


def _store(found: Found, folder: Path) -> str:
    """What is wrong with the store."""
    store, place = found.store, folder / "store"
    why = ""
    if store is None or not (store.claimed or store.id):
        what = f"{place / 'data.mdb'} is missing or empty" if store is None else f"{place} is new, no run has used it"
        why = f"{what}, but this run has worked{_trained(found)}" if found.begun else ""
    elif store.id and found.ids and store.id != found.ids[-1]:
        left = store.id in found.ids
        whose = "what this run left behind with --without-history" if left else "the store of another run"
        why = f"{place} is {whose} (id {store.id}; this run is {found.ids[-1]})"
    elif store.end < found.steps:
        why = (
            f"{place} is older than the checkpoints: {store}, the newest checkpoint is after"
            f" {counted(found.steps, 'step')}"
        )
    if not why:
        return ""
    back = (
        "put the run's own store/data.mdb back, from a copy of the folder or `rhymed history backup`, if it is not"
        " older than the checkpoints"
    )
    return f"{why}. Either {back}{_without(found, folder)}"


def _checkpoints(found: Found, folder: Path) -> str:
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


def _trained(found: Found) -> str:
    return f", and has checkpoints up to {counted(found.steps, 'step')}" if found.steps else ""


def _without(found: Found, folder: Path) -> str:
    if not found.steps:
        return ", or start a new run"
    return (
        ", or continue from the newest checkpoint without the samples of earlier steps:"
        f" rhymed run --resume {quoted(folder)} --without-history"
    )


def without_history(config: Config, layout: RunLayout) -> str:
    """Put the store aside, and an empty one in its place that begins at the newest intact checkpoint. Returns what
    was done. Blocking.

    Raises `ConfigError` without a checkpoint, or if the run is alive, and `CheckpointLost` if all are damaged.
    """
    with runs.hold(layout):
        newest = checkpoint.resume(layout.checkpoints, ids_of(layout.folder))
        if newest is None:
            raise ConfigError(
                f"--without-history: {layout.checkpoints} has no checkpoint to continue from: start a new run"
            )
        if is_open(layout.database):
            raise ConfigError(f"a store process has {layout.database} open: end the run of {layout.folder} first")
        id, old = runs.new_id(), _aside(layout.database)
        with atomic.new_folder(layout.database) as part:
            begin_at(part, int(config.store.map_gib * 2**30), newest.step, id)
        atomic.sync(layout.folder)
        runs.add_id(layout.folder, id)
    kept = f"; the old store is {old}" if old else ""
    return f"continuing after {counted(newest.step, 'step')} with an empty history{kept}"


def _aside(store: Path) -> Path | None:
    """Gives the store's folder another name. None: there is none."""
    if not store.exists():
        return None
    number = 1
    while (old := store.with_name(f"{store.name}.old-{number}")).exists():
        number += 1
    return store.rename(old)


# Whether a run that is to be resumed has nothing left to do. Reads its folder; starts nothing.


def refuse_fewer(earlier: Config, config: Config, layout: RunLayout) -> None:
    """Raises `RunMismatch` if they have fewer steps than are trained, and the errors of `finished`."""
    before, now = earlier.trainer, config.trainer
    if (before.steps, before.epochs) == (now.steps, now.epochs):
        return
    found = checkpoint.newest_sealed(layout.checkpoints)
    rows = read_metrics(layout)
    trained = max(found.step if found else 0, int(rows[-1]["step"]) + 1 if rows else 0)
    if trained == 0 or (steps := planned(config, layout.folder, 0).steps) >= trained:
        return
    cause = f"trainer.epochs = {now.epochs}" if now.steps == before.steps else f"trainer.steps = {now.steps}"
    raise RunMismatch(
        f"{cause} is a run of {counted(steps, 'step')}, and {layout.folder} has trained {trained} already: give it at"
        " least as many, or start a new run"
    )


def finished(config: Config, layout: RunLayout) -> str:
    """What is done, and how to train further; empty: the run can be resumed. Blocking: verifies the last checkpoint.

    Raises `ConfigError` or `DataError` if the dataset, from which the number of steps follows, cannot be read.
    """
    if not timeline.read(layout.folder).finished:
        return ""
    evaluated = _evaluated(config, layout)
    if config.trainer.steps == 0:
        return "finished: the model is evaluated, see eval.json" if evaluated == 0 else ""
    plan = planned(config, layout.folder, 0)
    newest = checkpoint.newest(layout.checkpoints)
    if newest is None or newest.step < plan.steps or (config.eval.datasets and evaluated < plan.steps):
        return ""
    more = "trainer.steps=N" if config.trainer.steps is not None else "trainer.epochs=N"
    further = f"rhymed run --resume {quoted(layout.folder)} -o {more}"
    return f"finished: all {plan.steps} steps are trained; to train further: {further}"


def _evaluated(config: Config, layout: RunLayout) -> int:
    """The newest policy version of which every dataset was evaluated; -1: none."""
    keys = [f"val/{data.name}/prompts" for data in config.eval.datasets]
    return max((row["step"] for row in read_evaluations(layout) if all(key in row for key in keys)), default=-1)
