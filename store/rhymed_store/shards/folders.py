"""The folders of a run's stores, from the first one's: `store`, `store-1`, and so on. For people and for recovery.

The number is that of the run's configuration, which lies beside them; without one, e.g. before the first run, all
folders that are there in a row. Each of them can also be named alone: then it is read without the others.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path

from rhymed.run.layout import store_name
from rhymed_store.database.transactions import is_open
from rhymed_store.position import Position, position_of
from rhymed_store.shards import merge


def folders_of(store: Path) -> list[Path]:
    """Those of the run whose first store is in this folder; they need not be there. Another folder: that one."""
    if store.name != store_name(0):
        return [store]
    configured = _configured(store.parent)
    if configured:
        return [store.with_name(store_name(number)) for number in range(configured)]
    beside = (store.with_name(store_name(number)) for number in itertools.count(1))
    return [store, *itertools.takewhile(Path.is_dir, beside)]


def _configured(run: Path) -> int:
    """0: unknown."""
    try:
        shards = json.loads((run / "config.json").read_bytes())["store"].get("shards", 1)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return 0
    return shards if isinstance(shards, int) and 0 < shards <= 1000 else 0


def any_open(store: Path) -> bool:
    """Whether a store process on this machine has one of the folders open."""
    return any(is_open(folder) for folder in folders_of(store))


def positions_of(store: Path) -> list[Position | None]:
    """Of each folder. Raises `StoreDamaged`, `StoreError`. Blocking."""
    return [position_of(folder) for folder in folders_of(store)]


def position_of_all(store: Path) -> Position | None:
    """How far the stores together are; None: one of them has no file, or nothing in it."""
    return merge.positions(positions_of(store))


def stamps(store: Path) -> Sequence[tuple[int, int, int] | None]:
    """Of each database's file what changes when it is written to or replaced."""
    return [_stamp(folder / "data.mdb") for folder in folders_of(store)]


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
