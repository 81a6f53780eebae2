"""`python -m benchmarks peers`: rhymed and TRL in turns, A B A B; a JSON file with every step, and a table in
Markdown.

A file that exists is continued (`results`); rounds are counted per task. The first step of each run is left out of
the times: caches fill and kernels are chosen there, on both sides.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, median, quantiles
from typing import Any

from benchmarks.peers import sides, tasks
from benchmarks.peers.environment import environment
from benchmarks.peers.results import WHO, open_results, rounds_of
from rhymed.core import atomic
from rhymed.core.errors import ConfigError
from rhymed.core.run.metrics import EDGE_STEPS
from rhymed.core.text import size_of

OUT = Path("peers.json")
ROUNDS, STEPS = 2, 10
SMALL = ("rollout.prompts_per_step=2", "rollout.group_size=2", "rollout.max_response_length=8")
QUICK = {"quickstart": ("data.size=4", *SMALL), "long": SMALL}


def run(
    quick: bool, task: str = "quickstart", rounds: int | None = None, steps: int | None = None, out: Path = OUT
) -> dict[str, Any]:
    """`quick`: one round of two small steps, which shows that both sides run. Raises `ConfigError`, `RhymedError`."""
    rounds = (1 if quick else ROUNDS) if rounds is None else rounds
    steps = (2 if quick else STEPS) if steps is None else steps
    _check(task, rounds, steps, out)
    more = QUICK[task] if quick else ()
    found = open_results(out, task, steps, quick)
    python = environment()
    first = max(rounds_of(found["measurements"], task), default=-1) + 1
    with tempfile.TemporaryDirectory(prefix="rhymed-peers-") as place:
        for number in range(first, first + rounds):
            job = tasks.job(tasks.load(task, steps, (*more, f"run.seed={number}")))
            for who in WHO:
                folder = Path(place) / f"{who.lower()}-{number}"
                if who == "TRL":
                    side = sides.trl(python, job, folder)
                else:
                    side = sides.ours(task, steps, number, folder, more)
                found["measurements"].append({"task": task, "who": who, "round": number, "quick": quick, **side})
                atomic.write(out, json.dumps(found, indent=1) + "\n")
                print(_line(found["measurements"][-1]), flush=True)
    out.with_suffix(".md").write_text("\n".join(table(found)) + "\n")
    print("\n".join(["", *table(found), "", f"wrote {out} and {out.with_suffix('.md')}"]))
    return found


def _check(task: str, rounds: int, steps: int, out: Path) -> None:
    """Before anything is installed or measured."""
    if task not in tasks.TASKS:
        raise ConfigError(f"--task {task}: there are {', '.join(tasks.TASKS)}")
    if rounds < 1 or steps < 2:
        raise ConfigError(
            f"--rounds {rounds} --steps {steps}: at least one round, and two steps: the first is left out"
        )
    if not tasks.file_of(task).is_file():
        raise ConfigError(f"{tasks.file_of(task)} is not here ({Path.cwd()}): call this in a checkout of rhymed")
    if not out.absolute().parent.is_dir():
        raise ConfigError(f"--out {out}: there is no folder {out.parent}")


def _line(one: dict[str, Any]) -> str:
    times = seconds(one)
    return (
        f"{one['task']} round {one['round'] + 1} {one['who']:<6} {median(times):.1f} s per step, reward"
        f" {_end(one):.3f}, {size_of(one['peak_bytes'])}"
    )


def seconds(one: dict[str, Any]) -> list[float]:
    """Of the steps after the first."""
    return [step["seconds"] for step in one["steps"][1:]]


def _end(one: dict[str, Any]) -> float:
    """Mean reward of the last steps."""
    rewards = [step["reward"] for step in one["steps"] if step.get("reward") is not None]
    return mean(rewards[-max(1, min(EDGE_STEPS, len(rewards) // 2)) :]) if rewards else float("nan")


def table(found: dict[str, Any]) -> Iterator[str]:
    """Markdown: a line per task and side; times are medians, with the middle half of all steps."""
    yield "| task | trainer | seconds per step | of rhymed's | reward after N steps | mean response | peak memory |"
    yield "|---|---|---|---|---|---|---|"
    by_task: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for one in found["measurements"]:
        by_task.setdefault(one["task"], {}).setdefault(one["who"], []).append(one)
    for task, whose in by_task.items():
        base = median(_all(whose["rhymed"])) if "rhymed" in whose else None
        for who, runs in whose.items():
            yield f"| {task} | {_name(who, runs)} | {' | '.join(_cells(runs, base))} |"


def _all(runs: list[dict[str, Any]]) -> list[float]:
    return [time for one in runs for time in seconds(one)]


def _name(who: str, runs: list[dict[str, Any]]) -> str:
    version = runs[-1].get("versions", {}).get("trl")
    return f"{who} {version}" if version else who


def _cells(runs: list[dict[str, Any]], base: float | None) -> Iterator[str]:
    times, steps = _all(runs), len(runs[-1]["steps"])
    low, _, high = quantiles(times, n=4) if len(times) > 1 else (times[0],) * 3
    yield f"{median(times):.1f} ({low:.1f} to {high:.1f}; {len(runs)} x {steps} steps)"
    yield f"{median(times) / base:.2f}" if base else "-"
    yield f"{mean(map(_end, runs)):.3f} after {steps}"
    yield f"{mean(step['length'] for one in runs for step in one['steps'] if 'length' in step):.0f} tokens"
    yield size_of(max(one["peak_bytes"] for one in runs))
