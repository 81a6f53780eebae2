"""The runs of a folder as rows: state, steps, rewards and times, from their folders and what their brokers answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from rhymed.core.config.load import load_run
from rhymed.core.errors import ConfigError, RhymedError
from rhymed.core.messages import Queues
from rhymed.core.run import folder as folders
from rhymed.core.run import provenance, timeline
from rhymed.core.run.client import ask
from rhymed.core.run.folder import near
from rhymed.core.run.layout import RunLayout, layout_of, paths_of
from rhymed.core.run.metrics import Row, finite, totals
from rhymed.core.run.state import end_of
from rhymed.core.run.timeline import FAILED, Progress
from rhymed.core.wire.addresses import is_removed
from rhymed.core.wire.sockets import Client
from rhymed_store.database.transactions import is_open

# Which folders in a folder are runs. Anything else, such as models and datasets, is ignored.
#
# A folder in it that is no run but holds runs is looked into as well.

LEFT = ("metrics.jsonl", "timeline.jsonl", "starts.jsonl", "store/data.mdb")  # only a run leaves these


class Found(NamedTuple):
    name: str  # relative to the folder that was looked into: quickstart, or rates/lr-1e-6
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


# The runs of a folder as rows: state, steps, rewards and times, from their folders and what their brokers answer.

# The state of a run: read from locks, from the record of its end and from its timeline, never guessed from times.

Condition: TypeAlias = Literal["running", "paused", "held", "finished", "failed", "interrupted", "stopped", "new"]
ALIVE = ("running", "paused", "held")
ENDED: dict[int, Condition] = {0: "finished", 130: "interrupted"}


def condition_of(folder: Path, last: float = 0.0, queues: Queues | None = None) -> tuple[Condition, str]:
    """The state, and why it failed. `last`: time of its newest trained step; the timeline before it is not read.
    `queues`: what its broker answers; None: nothing."""
    if queues is not None:
        return ("paused" if queues.paused else "running"), ""
    with contextlib.suppress(OSError):  # a folder of another user
        if folders.holder(folder) is not None:
            return "running", ""
        if is_open(folder / "store"):
            return "held", ""
    if (end := end_of(folder)) is not None and not _begun(folder, end.t):
        return ENDED.get(end.status, "failed"), end.why
    return _by_timeline(folder, last)


def _begun(folder: Path, since: float) -> bool:
    """It was continued without `rhymed run`."""
    return any(event.event == "begun" for event in timeline.read(folder, since).events)


def _by_timeline(folder: Path, last: float) -> tuple[Condition, str]:
    """For runs that `rhymed run` did not start, or that were killed."""
    line = timeline.read(folder, last)
    ends = [event for event in line.events if event.event in ("begun", "finished")]
    if not ends or ends[-1].event == "begun":
        return ("stopped" if ends or last else "new"), ""
    text = ends[-1].text or ""
    return ("failed", text.removeprefix(FAILED)) if text.startswith(FAILED) else ("finished", "")


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

    def json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Files:
    """What a run's files contain. Blocking to read; `Progress` continues where it was."""

    rows: list[Row]
    evaluations: list[Row]
    progress: Progress


def read_files(folder: Path) -> Files:
    where, progress = paths_of(folder), Progress()
    progress.read(folder)
    return Files(folders.read_metrics(where), folders.read_evaluations(where), progress)


def row_of(found: Found, files: Files, queues: Queues | None = None) -> RunRow:
    """`queues`: the snapshot of a living run."""
    last = float(files.rows[-1].get("time") or 0.0) if files.rows else 0.0
    state, why = condition_of(found.folder, last, queues)
    step = queues.step if queues else max((int(row["step"]) + 1 for row in files.rows), default=0)
    steps = _steps(found, state, step, queues)
    sums = totals(files.rows, 0.0) if files.rows else {}
    held, by, at = held_out(files.evaluations)
    times = files.progress.times(steps, time.time() if state in ALIVE else 0.0)
    return RunRow(
        name=found.name,
        folder=str(found.folder),
        state=state,
        why=why,
        step=step,
        steps=steps,
        reward=finite(sums.get("reward_last")),
        reward_first=finite(sums.get("reward_first")),
        held_out=held,
        held_out_by=by,
        held_out_step=at,
        elapsed_s=times.elapsed_s,
        eta_s=None if state == "paused" else times.eta_s,
        started=_started(found.folder, files.rows),
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


def _started(folder: Path, rows: Sequence[Row]) -> float | None:
    if starts := provenance.read(folder):
        return starts[0].t
    if rows and rows[0].get("time"):
        return float(rows[0]["time"]) - float(rows[0].get("timing_s/step") or 0.0)
    with contextlib.suppress(OSError):
        return (folder / "config.json").stat().st_mtime
    return None


# The runs of a folder as rows. Brokers of living runs are asked for what files lack, with a short deadline.

DEADLINE_S = 1.5


@dataclass(frozen=True)
class Listing:
    folder: Path
    runs: list[RunRow]
    damaged: list[Damaged]

    def json(self) -> dict[str, Any]:
        damaged = [{"folder": str(one.folder), "why": one.why} for one in self.damaged]
        return {"folder": str(self.folder), "runs": [row.json() for row in self.runs], "damaged": damaged}


def read(place: Path, answers: Mapping[Path, Queues | None]) -> Listing:
    """`answers`: snapshots of living runs by their runs. Blocking. Raises `ConfigError`."""
    found, damaged = find(place)
    rows = [row_of(one, read_files(one.folder), answers.get(one.folder)) for one in found]
    return Listing(place, ordered(rows), damaged)


def listing(place: Path) -> Listing:
    """With the answers of the brokers. Blocking. Raises `ConfigError`."""
    found, _ = find(place)
    return read(place, asyncio.run(answers_of([one.folder for one in found])))


async def answers_of(runs: Sequence[Path]) -> dict[Path, Queues | None]:
    """Snapshots of those that are alive on this machine, asked all at once."""
    places = {folder: where for folder in runs if (where := await asyncio.to_thread(_alive, folder))}
    answers = await asyncio.gather(*(_answer(where) for where in places.values()))
    return dict(zip(places, answers, strict=True))


def _alive(folder: Path) -> RunLayout | None:
    """Where to ask; None: it is not alive, or its configuration is of another release or place."""
    with contextlib.suppress(ConfigError, OSError):
        if folders.holder(folder) is not None or is_open(folder / "store"):
            where = layout_of(load_run(folder))
            return where if where.folder == folder.resolve() and not is_removed(where.broker) else None
    return None


async def _answer(where: RunLayout) -> Queues | None:
    client = None
    try:
        client = Client(where.broker, peer="broker", keys=where.keys("viewer"), resend=False)
        queues = await ask(client, deadline_s=DEADLINE_S)
    except RhymedError:
        return None
    finally:
        if client is not None:
            client.close()
    return queues if queues.run == where.folder.name else None


def ordered(rows: Sequence[RunRow]) -> list[RunRow]:
    """Living ones first, then the newest."""

    def key(row: RunRow) -> tuple[bool, float, str]:
        return row.state not in ALIVE, -(row.started or 0.0), row.name

    return sorted(rows, key=key)
