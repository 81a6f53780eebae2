"""Workers as rows: identity, load, speed and problems; and the samples of one worker. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rhymed.core.messages import Holding, Queues, WorkerRow
from rhymed.core.printable import line as line_of
from rhymed.core.run.stragglers import RATE, SILENT_S, stragglers
from rhymed.core.steps import is_evaluation
from rhymed.core.style import ROLES
from rhymed.core.text import age, size_of, step_name
from rhymed.show.top.state import History, utilization
from rhymed.show.top.table import UNKNOWN, Cell, Column, count, natural_key, share

ORDER = {"trainer": 0, "rollout": 1, "environment": 2, "reward": 3}
STYLES = {"trainer": "green", "rollout": "cyan", "environment": "bright_cyan", "reward": "magenta"}


@dataclass(frozen=True)
class WorkerEntry:
    row: WorkerRow
    outdated: bool  # its weights are older than the run's
    idle: float | None
    problem: str  # why it delays the others; empty: it does not

    @property
    def text(self) -> str:
        """What the filter searches."""
        return f"{self.row.worker} {self.row.host} {self.row.role} {_activity(self.row, self.problem)}"

    @property
    def rate(self) -> float | None:
        return self.row.stats.get(RATE) if self.row.role == "rollout" else None


def worker_entries(queues: Queues, history: History, filter: str = "") -> list[WorkerEntry]:
    """Workers whose name, host, role or phase contains the filter, ordered by role and name."""
    problems = stragglers(queues)
    word = filter.casefold()
    entries = (
        WorkerEntry(
            row,
            outdated=row.role == "rollout" and row.version < queues.version,
            idle=history.idle(row.worker),
            problem=problems.get(row.worker, ""),
        )
        for row in queues.workers
    )
    return sorted((entry for entry in entries if word in entry.text.casefold()), key=_name)


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


def _idle(entry: WorkerEntry) -> Cell:
    style = "dim" if entry.idle is None else "yellow" if entry.idle > 0.5 else ""
    return share(entry.idle), style


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


def _cores(entry: WorkerEntry) -> float | None:
    return entry.row.usage.cpu if entry.row.usage else None


def _bytes(entry: WorkerEntry) -> float | None:
    return entry.row.usage.memory if entry.row.usage else None


def _figure(
    title: str,
    width: int,
    cell: Callable[[WorkerEntry], Cell],
    of: Callable[[WorkerEntry], float | None],
    rank: int,
) -> Column[WorkerEntry]:
    """Sorted with the greatest first, and last those without a number."""

    def key(entry: WorkerEntry) -> float:
        return -1.0 if (found := of(entry)) is None else found

    return Column(title, width, cell, key, rank=rank, right=True, descending=True)


WORKER_COLUMNS: tuple[Column[WorkerEntry], ...] = (
    Column("worker", 13, _worker, _name, max_width=26),
    Column("host", 8, _host, lambda entry: entry.row.host, rank=8, max_width=16),
    Column("ver", 5, _version, lambda entry: entry.row.version, rank=4, right=True),
    _figure("slots", 7, _slots, lambda entry: entry.row.held, 2),
    _figure("ahead", 6, _parked, lambda entry: entry.row.parked, 9),
    _figure("tok/s", 7, _rate, lambda entry: entry.rate, 3),
    _figure("accept", 7, _accept, lambda entry: entry.row.accept_length, 7),
    _figure("idle", 5, _idle, lambda entry: entry.idle, 6),
    _figure("gpu", 5, _gpu, lambda entry: utilization(entry.row.usage), 10),
    _figure("cpu", 5, _cpu, _cores, 11),
    _figure("memory", 8, _memory, _bytes, 12),
    _figure("heard", 6, _heard, lambda entry: entry.row.silent_s, 5),
    Column("activity", 16, _activity_cell, lambda entry: _activity(entry.row, entry.problem), rank=1, max_width=60),
)


@dataclass(frozen=True)
class HeldSample:
    item: Holding
    longest: int  # tokens of the worker's longest sample

    @property
    def name(self) -> str:
        return str(self.item.id)

    @property
    def text(self) -> str:
        """What the filter searches."""
        return f"{step_name(self.item.id.step)} {self.item.id.prompt} {self.item.id.index + 1}"


def held_samples(row: WorkerRow, filter: str = "") -> list[HeldSample]:
    """Samples that contain the filter, the longest held first."""
    longest = max((item.tokens for item in row.holding), default=0)
    samples = (HeldSample(item, longest) for item in row.holding)
    shown = [held for held in samples if filter.casefold() in held.text.casefold()]
    return sorted(shown, key=lambda held: -held.item.seconds)


BAR = 20


def _length_bar(held: HeldSample) -> Cell:
    cells = round(BAR * held.item.tokens / held.longest) if held.longest else 0
    return "▒" * cells, "yellow" if held.item.parked else "cyan"


def _step(held: HeldSample) -> Cell:
    step = held.item.id.step
    return step_name(step).removeprefix("step "), "bold" if is_evaluation(step) else ""


SAMPLE_COLUMNS: tuple[Column[HeldSample], ...] = (
    Column("step", 8, _step, lambda held: held.item.id.step, rank=3),
    Column("prompt", 16, lambda held: (line_of(held.item.id.prompt), ""), lambda held: held.item.id.prompt),
    Column("#", 4, lambda held: (str(held.item.id.index + 1), ""), lambda held: held.item.id.index, right=True),
    Column(
        "tokens", 7, lambda held: (count(held.item.tokens), ""), lambda held: held.item.tokens, rank=1, right=True,
        descending=True,
    ),
    Column("", BAR, _length_bar, rank=5),
    Column(
        "held", 6, lambda held: (age(held.item.seconds), ""), lambda held: held.item.seconds, rank=2, right=True,
        descending=True,
    ),
    Column("", 15, lambda held: ("generated ahead" if held.item.parked else "", "yellow"), rank=4),
)  # fmt: skip


def find(workers: Sequence[WorkerRow], name: str) -> WorkerRow | None:
    return next((row for row in workers if row.worker == name), None)
