"""The file of results: what earlier calls have measured, and whether a call may add to it.

Numbers of one file are of one machine, and a task's are of one size. A round counts when both sides are measured.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.provenance import other_machine, other_versions
from rhymed.core.errors import ConfigError
from rhymed.core.run.provenance import machine, versions

Measurement = dict[str, Any]
WHO = ("rhymed", "TRL")


def open_results(out: Path, task: str, steps: int, quick: bool) -> dict[str, Any]:
    """What is in the file, without rounds of `task` that were interrupted. Raises `ConfigError` for a file of another
    machine, of other sizes or of something else."""
    here, now = machine(), versions()
    if not out.exists():
        return {"machine": here, "versions": now, "measurements": []}
    found = _read(out)
    _refuse_others(out, found, here)
    measured: list[Measurement] = found["measurements"]
    sizes = {(len(one["steps"]), one.get("quick", False)) for one in measured if one["task"] == task}
    if sizes - {(steps, quick)}:
        sides = ", ".join(f"{count} steps{' of --quick' * small}" for count, small in sorted(sizes))
        raise ConfigError(f"{out} has {task} with {sides}, which is not compared with this: name another --out")
    if changed := other_versions(found.get("versions", {}), now):
        print(f"note     {out} was begun with {changed}", flush=True)
    done = rounds_of(measured, task)
    found["measurements"] = [one for one in measured if one["task"] != task or one["round"] in done]
    if left_out := len(measured) - len(found["measurements"]):
        print(f"note     a round of {out} was interrupted: {left_out} measurement of it is left out", flush=True)
    return found


def rounds_of(measured: Sequence[Measurement], task: str) -> set[int]:
    """Those in which every side was measured."""
    whose = {who: {one["round"] for one in measured if (one["task"], one["who"]) == (task, who)} for who in WHO}
    return set.intersection(*whose.values())


def _read(out: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(out.read_text())
        _ = [(one["task"], one["who"], one["round"], len(one["steps"])) for one in found["measurements"]]
        _ = dict(found["machine"])
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError(f"{out} is no file of `python -m benchmarks peers`: name another one with --out") from None
    return found


def _refuse_others(out: Path, found: dict[str, Any], here: dict[str, str]) -> None:
    if found["measurements"] and (facts := other_machine(found["machine"], here)):
        raise ConfigError(f"{out} was measured on another machine ({facts}): name another file with --out")
