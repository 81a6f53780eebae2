"""The runs of a folder as rows: state, steps and rewards, from their folders alone; no process is asked."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rhymed.core.errors import ConfigError
from rhymed.core.run import folder as folders
from rhymed.core.run import provenance, timeline
from rhymed.core.run.folder import near
from rhymed.core.run.layout import paths_of
from rhymed.core.run.metrics import Row, finite, totals
from rhymed.core.run.state import State, end_of, state_of
from rhymed.core.run.timeline import Timeline
from rhymed_store.database.transactions import is_open

MEAN, PROMPTS = "/reward/mean", "/prompts"  # ends of an evaluation's keys


class Found(NamedTuple):
    name: str  # relative to the folder that was looked into: quickstart, or rates/lr-1e-6
    folder: Path
    config: dict[str, Any]  # as it was written, by whichever release


class Damaged(NamedTuple):
    folder: Path
    why: str


def find(place: Path) -> tuple[list[Found], list[Damaged]]:
    """The runs in this folder and in folders of it, by name; anything else, such as models and datasets, is ignored.
    Raises `ConfigError` if there is no such folder."""
    if place.is_file():
        raise ConfigError(f"{place} is a file: name a folder that holds runs, e.g. runs")
    if not place.is_dir():
        raise ConfigError(f"{place} does not exist: name a folder that holds runs, e.g. runs{near(place)}")
    runs: list[Found] = []
    damaged: list[Damaged] = []
    root = place.resolve()
    for folder in sorted(
        file.parent for inner in ("[!.]*", "[!.]*/[!.]*") for file in place.glob(f"{inner}/config.json")
    ):
        if (folder.parent / "config.json").exists():
            continue  # a run's own folder, such as `inputs`
        name, real = folder.relative_to(place), folder.resolve()
        if real.is_relative_to(root) and real != root / name:
            continue  # a link, such as `latest`, to what is listed already
        try:
            if (config := config_of(folder)) is not None:
                runs.append(Found(str(name), folder, config))
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


# A row of the list. A run is alive while a process of this machine holds its folder or has its store open.


@dataclass(frozen=True)
class RunRow:
    name: str
    folder: str
    state: State
    why: str = ""  # it failed
    step: int = 0  # trained steps
    steps: int | None = None  # of the whole run; None: unknown
    reward: float | None = None  # mean of the newest steps, as the run's summary has it
    held_out: float | None = None  # mean reward of the newest evaluation, over the prompts of all its datasets
    started: float | None = None  # seconds since 1970

    def json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Listing:
    folder: Path
    runs: list[RunRow]  # living ones first, then the newest
    damaged: list[Damaged]

    def json(self) -> dict[str, Any]:
        damaged = [{"folder": str(one.folder), "why": one.why} for one in self.damaged]
        return {"folder": str(self.folder), "runs": [row.json() for row in self.runs], "damaged": damaged}


def listing(place: Path) -> Listing:
    """Blocking. Raises `ConfigError`."""
    found, damaged = find(place)
    rows = sorted(map(row_of, found), key=lambda row: (row.state != "running", -(row.started or 0.0), row.name))
    return Listing(place, rows, damaged)


def row_of(found: Found) -> RunRow:
    where, line = paths_of(found.folder), timeline.read(found.folder)
    rows = folders.read_metrics(where)
    state: State = "running" if _is_alive(found.folder) else state_of(found.folder, line)
    step = max((int(row["step"]) + 1 for row in rows), default=0)
    return RunRow(
        name=found.name,
        folder=str(found.folder),
        state=state,
        why="" if state == "running" else _why(found.folder, line),
        step=step,
        steps=_steps(found, step, finished=state == "finished"),
        reward=finite(totals(rows, 0.0)["reward_last"]) if rows else None,
        held_out=held_out(folders.read_evaluations(where))[0],
        started=_started(found.folder),
    )


def _is_alive(folder: Path) -> bool:
    with contextlib.suppress(OSError):  # a folder of another user
        return folders.holder(folder) is not None or is_open(folder / "store")
    return False


def _why(folder: Path, line: Timeline) -> str:
    """Of its failure; empty: it did not fail, or was continued since without `rhymed run`."""
    end = end_of(folder)
    if end is None or any(event.event == "begun" and event.t > end.t for event in line.events):
        return ""
    return end.why


def held_out(evaluations: Sequence[Row]) -> tuple[float | None, int | None]:
    """Of the newest evaluation: its mean reward over the prompts of all datasets, and the steps before it."""
    for row in reversed(evaluations):
        keys = (key for key, value in row.items() if key.endswith(MEAN) and value is not None)
        if names := [key.removeprefix("val/").removesuffix(MEAN) for key in keys]:
            sizes = {name: row.get(f"val/{name}{PROMPTS}") or 1.0 for name in names}
            total = sum(row[f"val/{name}{MEAN}"] * sizes[name] for name in names)
            return float(total / sum(sizes.values())), int(row["step"])
    return None, None


def _steps(found: Found, step: int, *, finished: bool) -> int | None:
    """`step`: trained steps. The configuration may name more than its rows are enough for; the record of an end may
    be older than the newest steps."""
    end, configured = end_of(found.folder), found.config.get("trainer", {}).get("steps")
    known = step if finished else end.steps if end else 0
    if known and known >= step:
        return known
    return configured if isinstance(configured, int) else None


def _started(folder: Path) -> float | None:
    if starts := provenance.read(folder):
        return starts[0].t
    with contextlib.suppress(OSError):
        return (folder / "config.json").stat().st_mtime
    return None
