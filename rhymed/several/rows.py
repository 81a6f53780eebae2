"""One run as a row: state, steps, rewards and times, from its folder and what its broker answers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rhymed.messages import Queues
from rhymed.run import folder as runs
from rhymed.run import provenance
from rhymed.run.layout import RunLayout
from rhymed.run.progress import Progress, Times
from rhymed.run.state import end_of
from rhymed.run.totals import Row, totals
from rhymed.several.condition import ALIVE, Condition, condition_of
from rhymed.several.find import Found

MEAN, PROMPTS = "/reward/mean", "/prompts"


@dataclass(frozen=True)
class RunRow:
    name: str
    folder: str
    state: Condition
    why: str = ""  # it failed
    step: int = 0  # trained steps
    steps: int | None = None  # of the whole run; None: unknown
    reward: float | None = None  # mean of the newest steps, as the run's summary has it
    reward_first: float | None = None  # the same of the first steps
    held_out: float | None = None  # mean reward of the newest evaluation, over the prompts of all its datasets
    held_out_by: dict[str, float] = field(default_factory=dict)  # the same by dataset
    held_out_step: int | None = None  # trained steps before that evaluation
    elapsed_s: float = 0.0  # without the pauses of a run that was resumed
    eta_s: float | None = None  # None: not alive, or not known yet
    started: float | None = None  # seconds since 1970
    settings: dict[str, str] = field(default_factory=dict)  # those that its sweep varies

    def json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Files:
    """What a run's files contain. Blocking to read; `Progress` continues where it was."""

    rows: list[Row]
    evaluations: list[Row]
    progress: Progress


def read_files(folder: Path, progress: Progress | None = None) -> Files:
    where = paths_of(folder)
    progress = progress or Progress()
    progress.read(folder)
    return Files(runs.read_metrics(where), runs.read_evaluations(where), progress)


def paths_of(folder: Path) -> RunLayout:
    """Paths alone: they follow from the folder, also after it was moved."""
    return RunLayout(folder=folder, broker="", store="", weights="", sockets=folder)


def row_of(
    found: Found, files: Files, queues: Queues | None = None, settings: Mapping[str, str] | None = None
) -> RunRow:
    """`queues`: the snapshot of a living run."""
    last = float(files.rows[-1].get("time") or 0.0) if files.rows else 0.0
    state, why = condition_of(found.folder, last, queues)
    step = queues.step if queues else max((int(row["step"]) + 1 for row in files.rows), default=0)
    steps = _steps(found, state, step, queues)
    sums = totals(files.rows, 0.0) if files.rows else {}
    held, by, at = held_out(files.evaluations)
    times = _times(files.progress, steps, alive=state in ALIVE)
    return RunRow(
        name=found.name,
        folder=str(found.folder),
        state=state,
        why=why,
        step=step,
        steps=steps,
        reward=_finite(sums.get("reward_last")),
        reward_first=_finite(sums.get("reward_first")),
        held_out=held,
        held_out_by=by,
        held_out_step=at,
        elapsed_s=times.elapsed_s,
        eta_s=None if state == "paused" else times.eta_s,
        started=_started(found.folder, files.rows),
        settings=dict(settings or {}),
    )


def held_out(evaluations: Sequence[Row]) -> tuple[float | None, dict[str, float], int | None]:
    """Of the newest evaluation: its mean reward over all prompts, that of each dataset, and the steps before it."""
    for row in reversed(evaluations):
        names = [key.removeprefix("val/").removesuffix(MEAN) for key in row if key.endswith(MEAN)]
        by = {name: row[f"val/{name}{MEAN}"] for name in names if row[f"val/{name}{MEAN}"] is not None}
        if by:
            sizes = {name: row.get(f"val/{name}{PROMPTS}") or 1.0 for name in by}
            mean = sum(by[name] * sizes[name] for name in by) / sum(sizes.values())
            return mean, by, int(row["step"])
    return None, {}, None


def _steps(found: Found, state: Condition, step: int, queues: Queues | None) -> int | None:
    if queues is not None and queues.steps:
        return queues.steps
    configured = found.config.get("trainer", {}).get("steps")
    if isinstance(configured, int):
        return configured
    end = end_of(found.folder)
    return (end.steps if end else 0) or (step if state == "finished" else None)


def _times(progress: Progress, steps: int | None, *, alive: bool) -> Times:
    return progress.times(steps, time.time() if alive else 0.0)


def _started(folder: Path, rows: Sequence[Row]) -> float | None:
    if starts := provenance.read(folder):
        return starts[0].t
    if rows and rows[0].get("time"):
        return float(rows[0]["time"]) - float(rows[0].get("timing_s/step") or 0.0)
    with contextlib.suppress(OSError):
        return (folder / "config.json").stat().st_mtime
    return None


def _finite(value: float | None) -> float | None:
    return value if value is not None and value == value else None
