"""`python -m tests.stress.overhead`: what durability costs a calm run. Runs with and without it take turns.

`saving`: partial samples are saved as they grow (`rollout.save_every_s`), or samples only when they are done.
`durability`: `store.durability` is sync (an acknowledgement means that the data is on disk) or async. Each pair runs
A B A B. The ratio compares median seconds per step over whole runs without their first steps.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from rhymed.core.config import Rollout
from rhymed.core.errors import ConfigError
from rhymed.core.run.folder import read_metrics
from tests.stress import command
from tests.stress.run import LiveRun, Shape

ROUNDS = 2
WARM = 3  # first steps, which are left out
PAIRS: dict[str, tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]] = {
    "saving": (
        {"rollout": {"save_every_s": Rollout.model_fields["save_every_s"].default}},
        {"rollout": {"save_every_s": 0}},
    ),
    "durability": ({"store": {"durability": "sync"}}, {"store": {"durability": "async"}}),
}


def run(
    quick: bool, steps: int | None = None, rollout: int = 3, reward: int = 2, out: Path | None = None
) -> dict[str, Any]:
    """`steps` of each run; `rollout`, `reward`: workers; `out`: a folder that keeps the runs."""
    steps = steps or (20 if quick else 100)
    folder = out or Path(tempfile.mkdtemp(prefix="rhymed-overhead-"))
    found: dict[str, Any] = {"steps": steps}
    for name, sides in PAIRS.items():
        seconds: tuple[list[float], list[float]] = ([], [])
        for turn in range(ROUNDS):
            for side, settings in enumerate(sides):
                shape = _with(Shape(max(steps, WARM + 2), rollout, reward), settings)
                seconds[side].append(asyncio.run(_time(shape, folder / f"{name}-{turn}-{'ab'[side]}")))
        durable, bare = median(seconds[0]), median(seconds[1])
        found[name] = {"with_s": seconds[0], "without_s": seconds[1], "ratio": durable / bare}
        print(f"{name}: {_list(seconds[0])} s per step with it, {_list(seconds[1])} without: {durable / bare:.3f} x")
    if out is None:
        shutil.rmtree(folder)
    return found


def _with(shape: Shape, settings: dict[str, dict[str, Any]]) -> Shape:
    merged = {section: {**shape.settings.get(section, {}), **given} for section, given in settings.items()}
    return replace(shape, settings={**shape.settings, **merged})


async def _time(shape: Shape, folder: Path) -> float:
    """Mean seconds per step."""
    with LiveRun(shape.write(folder, "run")) as run:
        if await run.ended() != 0:
            raise ConfigError(f"the run failed:\n{run.tail()}")
        rows = read_metrics(run.where)[WARM:]
        return sum(float(row["timing_s/step"]) for row in rows) / len(rows)


def _list(seconds: list[float]) -> str:
    return " ".join(f"{one:.3f}" for one in seconds)


def main() -> int:
    parser = command.parser("tests.stress.overhead", "measure what durability costs a calm run")
    parser.add_argument("--steps", type=int, metavar="N", help="training steps of each run")
    parser.add_argument("--rollout", type=int, metavar="N", help="rollout workers")
    parser.add_argument("--reward", type=int, metavar="N", help="reward workers")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="keep the runs here")
    return command.call(run, parser)


if __name__ == "__main__":
    sys.exit(main())
