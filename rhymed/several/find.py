"""Which folders in a folder are runs. Anything else, such as models and datasets, is ignored.

A folder in it that is no run but holds runs, as that of a sweep does, is looked into as well.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rhymed.errors import ConfigError
from rhymed.run.folder import near

LEFT = ("metrics.jsonl", "timeline.jsonl", "starts.jsonl", "store/data.mdb")  # only a run leaves these


class Found(NamedTuple):
    name: str  # relative to the folder that was looked into: quickstart, or sweep/lr-1e-6
    folder: Path
    config: dict[str, Any]  # as it was written, by whichever release


class Damaged(NamedTuple):
    folder: Path
    why: str


def find(place: Path) -> tuple[list[Found], list[Damaged]]:
    """By name. Raises `ConfigError` if there is no such folder."""
    if place.is_file():
        raise ConfigError(f"{place} is a file: name a folder that holds runs, e.g. runs")
    if not place.is_dir():
        raise ConfigError(f"{place} does not exist: name a folder that holds runs, e.g. runs{near(place)}")
    runs: list[Found] = []
    damaged: list[Damaged] = []
    for folder, name in _candidates(place):
        try:
            if (config := config_of(folder)) is not None:
                runs.append(Found(name, folder, config))
            elif any((folder / file).exists() for file in LEFT):
                damaged.append(Damaged(folder, "it has no config.json"))
        except (OSError, ValueError) as error:
            damaged.append(Damaged(folder, f"config.json cannot be read: {error}"))
    return runs, damaged


def config_of(folder: Path) -> dict[str, Any] | None:
    """The run's configuration; None: there is none, or the file is another program's. Raises `OSError` and
    `ValueError`."""
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except FileNotFoundError:
        return None
    is_run = isinstance(config, dict) and all(isinstance(config.get(name), dict) for name in ("run", "rollout"))
    return config if is_run else None


def _candidates(place: Path) -> Iterator[tuple[Path, str]]:
    root = place.resolve()
    for folder in _folders(place, root):
        below = [] if _is_one(folder) else [inner for inner in _folders(folder, root) if _is_one(inner)]
        if below:
            yield from ((inner, f"{folder.name}/{inner.name}") for inner in below)
        else:
            yield folder, folder.name


def _is_one(folder: Path) -> bool:
    return any((folder / file).exists() for file in ("config.json", *LEFT))


def _folders(place: Path, root: Path) -> list[Path]:
    """Without hidden ones, and without links to what is in `root`, which is listed already."""
    try:
        inside = sorted(place.iterdir())
    except OSError:
        return []
    found = [path for path in inside if path.is_dir() and not path.name.startswith(".")]
    return [path for path in found if not (path.is_symlink() and path.resolve().is_relative_to(root))]
