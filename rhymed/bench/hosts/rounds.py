"""What `rhymed bench hosts` has measured, in a file that a later call continues, and as rows of a table."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rhymed.errors import ConfigError

KINDS = ("whole", "changes")


class Cell(NamedTuple):
    hosts: int
    size_gb: float
    keys: bool
    gbit: float  # 0: no limit


class Rounds:
    """One JSON object a line: a cell, and one round of it."""

    def __init__(self, path: Path | None) -> None:
        """Raises `ConfigError` if the file is another one's."""
        self._path = path
        self._rounds: dict[Cell, list[dict[str, Any]]] = {}
        if path is None or not path.exists():
            return
        try:
            for line in path.read_text().splitlines():
                found = json.loads(line)
                self._rounds.setdefault(Cell(*found["cell"]), []).append(found["round"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"--out {path} is no file of this benchmark ({error}): choose another name") from error

    def of(self, cell: Cell) -> list[dict[str, Any]]:
        return self._rounds.get(cell, [])

    def add(self, cell: Cell, found: dict[str, Any]) -> None:
        self._rounds.setdefault(cell, []).append(found)
        if self._path is not None:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                with self._path.open("a") as file:
                    file.write(json.dumps({"cell": cell, "round": found}) + "\n")
            except OSError as error:
                raise ConfigError(f"--out {self._path} cannot be written: {error.strerror}") from error


def row(cell: Cell, rounds: Sequence[dict[str, Any]], alone: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians; `against_one`: the time until the last host has the weights, in times of a single host in the same
    round; `cpu_s_per_gb`: processor time of all processes, for each GB that a host got."""
    made: dict[str, Any] = {"hosts": cell.hosts, "gigabytes": cell.size_gb, "keys": cell.keys}
    made["window"] = max(one["window"] for one in rounds)
    for kind in KINDS:
        middle = {name: statistics.median(one[kind][name] for one in rounds) for name in rounds[0][kind]}
        times = [one[kind]["last_s"] for one in rounds]
        middle |= {"least_s": min(times), "most_s": max(times), "gb_per_s_a_host": cell.size_gb / middle["last_s"]}
        middle["cpu_s_per_gb"] = middle.pop("cpu_s") / (cell.size_gb * cell.hosts)
        ratios = [one[kind]["last_s"] / single[kind]["last_s"] for one, single in zip(rounds, alone, strict=False)]
        middle["against_one"] = statistics.median(ratios) if ratios else None
        made[kind] = middle
    return made


def header() -> str:
    return (
        f"{'GB':>6}{'keys':>6}{'hosts':>6}{'last host':>26}{'against one':>13}{'GB/s a host':>13}{'CPU s/GB':>10}"
        f"{'trainer sent':>14}{'changes':>10}{'sent':>8}"
    )


def text(row: dict[str, Any]) -> str:
    whole, changes = row["whole"], row["changes"]
    last = f"{whole['last_s']:.2f} s ({whole['least_s']:.2f}-{whole['most_s']:.2f})"
    ratio = "-" if whole["against_one"] is None else f"{whole['against_one']:.2f}"
    return (
        f"{row['gigabytes']:>6g}{'yes' if row['keys'] else 'no':>6}{row['hosts']:>6}{last:>26}{ratio:>13}"
        f"{whole['gb_per_s_a_host']:>13.2f}{whole['cpu_s_per_gb']:>10.2f}{whole['sent_by_trainer']:>11.2f} of"
        f"{changes['last_s']:>8.2f} s{changes['sent_by_trainer']:>8.3f}{'  repeats' if row['window'] else ''}"
    )
