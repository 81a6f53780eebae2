"""Checkpoint folders that are whole or not there: `step-000010` holds all steps below 10.

A folder is written under another name, synced, sealed with the digests of its files, and renamed. `newest` verifies
the digests and falls back to the one before. What is in the files is the writer's affair.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from rhymed.atomic import sync
from rhymed.errors import CheckpointError, CheckpointLost

log = logging.getLogger(__name__)

MANIFEST = "manifest.json"
NAME = re.compile(r"step-(\d{6,})")
UNFINISHED = ".writing-"


class Checkpoint(NamedTuple):
    step: int  # steps trained
    folder: Path


def place(folder: Path, step: int) -> Path:
    """Where the checkpoint after so many steps is, if it is there."""
    return folder / f"step-{step:06d}"


def save(folder: Path, step: int, write: Callable[[Path], None], keep: int) -> Checkpoint:
    """Let `write` fill a folder and make it durable as the checkpoint of `step`; keep the `keep` newest.

    Blocking. A good checkpoint of this step that is there already stays. Raises `CheckpointError`.
    """
    target = place(folder, step)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        if not (target.is_dir() and _verified(target)):
            made = folder / f"{UNFINISHED}{target.name}"
            made.mkdir()
            write(made)
            _seal(made)
            if target.exists():
                shutil.rmtree(target)
            made.rename(target)
            sync(folder)
        _prune(folder, step, keep)
    except OSError as error:
        raise CheckpointError(f"{target} cannot be written: {error}; free some space, or move run.folder") from error
    return Checkpoint(step, target)


def newest(folder: Path) -> Checkpoint | None:
    """The newest one whose files are what was written, or None. Blocking: reads all of it."""
    for found in reversed(all_in(folder)):
        if _verified(found.folder):
            return found
    return None


def resume(folder: Path) -> Checkpoint | None:
    """The newest good one; None if there is none at all. Raises `CheckpointLost` if all are damaged. Blocking."""
    found = newest(folder)
    if found is None and (damaged := all_in(folder)):
        names = ", ".join(one.folder.name for one in damaged)
        raise CheckpointLost(
            f"every checkpoint in {folder} is damaged ({names}): put a good one back, or begin again as a new run"
        )
    return found


def of_step(folder: Path, step: int) -> Checkpoint | None:
    """The one after so many steps, if it is there and good. Blocking, too."""
    return next((found for found in all_in(folder) if found.step == step and _verified(found.folder)), None)


def _verified(folder: Path) -> bool:
    """Tells the log what is wrong, if something is."""
    if why := damage(folder):
        log.warning("checkpoint %s is damaged and will not be used: %s", folder, why)
    return not why


def damage(folder: Path) -> str:
    """What is wrong with a checkpoint; empty: nothing. Blocking: reads all of it."""
    try:
        listed = json.loads((folder / MANIFEST).read_text())["files"]
        for name, digest in listed.items():
            if _digest(folder / name) != digest:
                raise ValueError(f"{name} is not what was written")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return str(error)
    return ""


def _seal(folder: Path) -> None:
    """Everything in the folder to disk, the manifest last."""
    files = {path.name: _digest(path) for path in sorted(folder.iterdir())}
    for name in files:
        sync(folder / name)
    manifest = folder / MANIFEST
    manifest.write_text(json.dumps({"files": files}, indent=1))
    sync(manifest)
    sync(folder)


def _prune(folder: Path, step: int, keep: int) -> None:
    """The ones before `step` beyond `keep`. Later ones stay: a run that was set back by damage has not reached
    them."""
    for old in [found for found in all_in(folder) if found.step <= step][:-keep]:
        shutil.rmtree(old.folder, ignore_errors=True)


def _sweep(folder: Path) -> None:
    for left in folder.glob(f"{UNFINISHED}*"):
        shutil.rmtree(left)


def all_in(folder: Path) -> list[Checkpoint]:
    """By their names, oldest first, good or not."""

    def found() -> Iterator[Checkpoint]:
        for path in folder.iterdir():
            if match := NAME.fullmatch(path.name):
                yield Checkpoint(int(match[1]), path)

    with contextlib.suppress(FileNotFoundError):
        return sorted(found())
    return []


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
