"""Workers as rows: identity, load, speed and problems; and the samples that they hold. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from rhymed.core.messages import Holding, Queues, WorkerRow
from rhymed.core.printable import line as line_of
from rhymed.core.run.stragglers import RATE, SILENT_S, stragglers
from rhymed.core.style import ROLES
from rhymed.core.text import age, size_of
from rhymed.show.top.state import utilization
from rhymed.show.top.table import UNKNOWN, Cell, Column, count, natural_key, share

ORDER = {"trainer": 0, "rollout": 1, "environment": 2, "reward": 3}
STYLES = {"trainer": "green", "rollout": "cyan", "environment": "bright_cyan", "reward": "magenta"}


@dataclass(frozen=True)
class WorkerEntry:
    row: WorkerRow
    outdated: bool  # its weights are older than the run's
    problem: str  # why it delays the others; empty: it does not

    @property
    def rate(self) -> float | None:
        return self.row.stats.get(RATE) if self.row.role == "rollout" else None


def worker_entries(queues: Queues) -> list[WorkerEntry]:
    """Ordered by role and name."""
    problems = stragglers(queues)
    entries = (
        WorkerEntry(
            row,
            outdated=row.role == "rollout" and row.version < queues.version,
            problem=problems.get(row.worker, ""),
        )
        for row in queues.workers
    )
    return sorted(entries, key=_name)


def _name(entry: WorkerEntry) -> tuple[int, list[tuple[int, int | str]]]:
    return ORDER[entry.row.role], natural_key(entry.row.worker)


def _activity(row: WorkerRow, problem: str = "") -> str:
    parts = ["DRAINED" if row.drained else "", problem, line_of(row.phase), *_calls(row)]
    return ", ".join(part for part in parts if part) or UNKNOWN


def _calls(row: WorkerRow) -> list[str]:
    """Of tools and environments, since the worker started."""
    if row.role != "environment" or "environment/calls" not in row.stats:
        return []
    calls, errors = count(row.stats["environment/calls"]), row.stats.get("environment/call_errors", 0)
    return [f"{count(errors)} of {calls} calls failed" if errors else f"{calls} calls"]


def _activity_cell(entry: WorkerEntry) -> Cell:
    style = "bold red" if entry.problem else "bold yellow" if entry.row.drained else ""
    return _activity(entry.row, entry.problem), style


def _worker(entry: WorkerEntry) -> Cell:
    return f"{ROLES[entry.row.role]} {line_of(entry.row.worker)}", "red" if entry.problem else STYLES[entry.row.role]


def _host(entry: WorkerEntry) -> Cell:
    return line_of(entry.row.host), ""


def _version(entry: WorkerEntry) -> Cell:
    row = entry.row
    if row.role == "reward" or row.version < 0:
        return UNKNOWN, "dim"
    return f"v{row.version}", "yellow" if entry.outdated else ""


def _slots(entry: WorkerEntry) -> Cell:
    row = entry.row
    if row.role == "trainer":
        return UNKNOWN, "dim"
    running = row.held - row.parked
    return f"{running}/{row.slots}", "" if running else "dim"


def _parked(entry: WorkerEntry) -> Cell:
    return (str(entry.row.parked), "") if entry.row.parked else ("", "")


def _rate(entry: WorkerEntry) -> Cell:
    return (UNKNOWN, "dim") if entry.rate is None else (count(entry.rate), "" if entry.rate else "dim")


def _accept(entry: WorkerEntry) -> Cell:
    length = entry.row.accept_length
    return (f"{length:.2f}", "") if length else (UNKNOWN, "dim")


def _cpu(entry: WorkerEntry) -> Cell:
    usage = entry.row.usage
    return (f"{usage.cpu:.1f}", "" if usage.cpu >= 0.05 else "dim") if usage else (UNKNOWN, "dim")


def _memory(entry: WorkerEntry) -> Cell:
    usage = entry.row.usage
    return (size_of(usage.memory), "") if usage else (UNKNOWN, "dim")


def _gpu(entry: WorkerEntry) -> Cell:
    return share(utilization(entry.row.usage)), ""


def _heard(entry: WorkerEntry) -> Cell:
    return age(entry.row.silent_s), "bold red" if entry.row.silent_s > SILENT_S else ""


WORKER_COLUMNS: tuple[Column[WorkerEntry], ...] = (
    Column("worker", 13, _worker, max_width=26),
    Column("host", 8, _host, rank=8, max_width=16),
    Column("ver", 5, _version, right=True, rank=4),
    Column("slots", 7, _slots, right=True, rank=2),
    Column("ahead", 6, _parked, right=True, rank=9),
    Column("tok/s", 7, _rate, right=True, rank=3),
    Column("accept", 7, _accept, right=True, rank=7),
    Column("gpu", 5, _gpu, right=True, rank=10),
    Column("cpu", 5, _cpu, right=True, rank=11),
    Column("memory", 8, _memory, right=True, rank=12),
    Column("heard", 6, _heard, right=True, rank=5),
    Column("activity", 16, _activity_cell, rank=1, max_width=60),
)


def longest_held(row: WorkerRow) -> list[Holding]:
    """Its samples, the longest held first."""
    return sorted(row.holding, key=lambda item: -item.seconds)
