"""What `python -m benchmarks hosts` has measured, in a file that a later call continues, and as rows of a table."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.provenance import other_machine, other_versions
from rhymed.core.errors import ConfigError
from rhymed.core.run.provenance import machine, versions


class Cell(NamedTuple):
    hosts: int
    size_gb: float
    keys: bool
    gbit: float  # 0: no limit


class Rounds:
    """Lines of JSON: the machine, then a cell and one round of it a line. Rounds of one cell are of equal files."""

    def __init__(self, path: Path | None) -> None:
        """Raises `ConfigError` for a file of another machine or of something else."""
        self._path, self._begun = path, False
        self._rounds: dict[Cell, list[dict[str, Any]]] = {}
        if path is None or not path.exists():
            return
        try:
            first, *lines = [json.loads(line) for line in path.read_text().splitlines()]
            there, versions_there = dict(first["machine"]), dict(first["versions"])
            for found in lines:
                self._rounds.setdefault(Cell(*found["cell"]), []).append(_checked(found["round"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"--out {path} is no file of this benchmark ({error}): choose another name") from error
        self._begun = True
        if self._rounds and (facts := other_machine(there, machine())):
            raise ConfigError(f"--out {path} was measured on another machine ({facts}): choose another name")
        if changed := other_versions(versions_there, versions()):
            print(f"note     {path} was begun with {changed}", flush=True)

    def of(self, cell: Cell) -> list[dict[str, Any]]:
        return self._rounds.get(cell, [])

    def window(self, cell: Cell) -> int | None:
        """Of the rounds that the cell has; None: it has none."""
        rounds = self.of(cell)
        return int(rounds[0]["window"]) if rounds else None

    def add(self, cell: Cell, found: dict[str, Any]) -> None:
        self._rounds.setdefault(cell, []).append(found)
        if self._path is None:
            return
        begin = [] if self._begun else [{"machine": machine(), "versions": versions()}]
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a") as file:
                file.writelines(json.dumps(one) + "\n" for one in [*begin, {"cell": cell, "round": found}])
        except OSError as error:
            raise ConfigError(f"--out {self._path} cannot be written: {error.strerror}") from error
        self._begun = True


def _checked(found: dict[str, Any]) -> dict[str, Any]:
    """Raises `KeyError`."""
    _ = found["window"], found["last_s"]
    return found


def row(cell: Cell, rounds: Sequence[dict[str, Any]], alone: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians; `against_one`: the time until the last host has the weights, in times of a single host in the same
    round, if files repeat in both or in neither; `cpu_s_per_gb`: processor time of all processes, for each GB that a
    host got."""
    made: dict[str, Any] = {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
    made |= {"hosts": cell.hosts, "gigabytes": cell.size_gb, "keys": cell.keys}
    made["window"] = max(one["window"] for one in rounds)
    times = [one["last_s"] for one in rounds]
    made |= {"least_s": min(times), "most_s": max(times), "gb_per_s_a_host": cell.size_gb / made["last_s"]}
    made["cpu_s_per_gb"] = made.pop("cpu_s") / (cell.size_gb * cell.hosts)
    ratios = [one["last_s"] / single["last_s"] for one, single in zip(rounds, alone, strict=False)]
    ratios = ratios if bool(made["window"]) == any(one["window"] for one in alone) else []
    made["against_one"] = statistics.median(ratios) if ratios else None
    return made


def header() -> str:
    return (
        f"{'GB':>6}{'keys':>6}{'hosts':>6}{'last host':>26}{'against one':>13}{'GB/s a host':>13}{'CPU s/GB':>10}"
        f"{'trainer sent':>14}"
    )


def text(row: dict[str, Any]) -> str:
    last = f"{row['last_s']:.2f} s ({row['least_s']:.2f}-{row['most_s']:.2f})"
    ratio = "-" if row["against_one"] is None else f"{row['against_one']:.2f}"
    return (
        f"{row['gigabytes']:>6g}{'yes' if row['keys'] else 'no':>6}{row['hosts']:>6}{last:>26}{ratio:>13}"
        f"{row['gb_per_s_a_host']:>13.2f}{row['cpu_s_per_gb']:>10.2f}{row['sent_by_trainer']:>14.2f}"
        f"{'  repeats' if row['window'] else ''}"
    )
