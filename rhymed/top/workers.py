"""Workers as rows: who they are, what they have and how well they do; and one worker's samples. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rhymed.messages import EVAL, Holding, Queues, WorkerRow
from rhymed.run.stragglers import RATE, SILENT_S, stragglers
from rhymed.style import ROLES
from rhymed.text import age, step_name
from rhymed.top.state import History
from rhymed.top.table import Cell, Column
from rhymed.top.text import UNKNOWN, clean, count, natural, share

ORDER = {"trainer": 0, "rollout": 1, "reward": 2}
STYLES = {"trainer": "green", "rollout": "cyan", "reward": "magenta"}


@dataclass(frozen=True)
class Seat:
    """A worker in the table."""

    row: WorkerRow
    behind: bool  # its weights are older than the run's
    idle: float | None
    wrong: str  # why it holds up the others; empty: it does not

    @property
    def rate(self) -> float | None:
        return self.row.stats.get(RATE) if self.row.role == "rollout" else None


def seats(queues: Queues, history: History, filter: str = "") -> list[Seat]:
    """Those in whose names, hosts, roles or phases the filter occurs, in the order of roles and names."""
    wrong = stragglers(queues)
    word = filter.casefold()
    found = [
        Seat(row, row.role == "rollout" and row.version < queues.version, history.idle(row.worker), told)
        for row in queues.workers
        if word in f"{row.worker} {row.host} {row.role} {_does(row, told := wrong.get(row.worker, ''))}".casefold()
    ]
    return sorted(found, key=_name)


def _name(seat: Seat) -> tuple[int, list[tuple[int, int | str]]]:
    return ORDER[seat.row.role], natural(seat.row.worker)


def _does(row: WorkerRow, wrong: str = "") -> str:
    parts = ["DRAINED" if row.drained else "", wrong, clean(row.phase)]
    return ", ".join(part for part in parts if part) or UNKNOWN


def _doing(seat: Seat) -> Cell:
    style = "bold red" if seat.wrong else "bold yellow" if seat.row.drained else ""
    return _does(seat.row, seat.wrong), style


def _worker(seat: Seat) -> Cell:
    return f"{ROLES[seat.row.role]} {clean(seat.row.worker)}", "red" if seat.wrong else STYLES[seat.row.role]


def _version(seat: Seat) -> Cell:
    row = seat.row
    if row.role == "reward" or row.version < 0:
        return UNKNOWN, "dim"
    return f"v{row.version}", "yellow" if seat.behind else ""


def _has(seat: Seat) -> Cell:
    row = seat.row
    if row.role == "trainer":
        return UNKNOWN, "dim"
    writes = row.held - row.parked
    return f"{writes}/{row.slots}", "" if writes else "dim"


def _parked(seat: Seat) -> Cell:
    return (str(seat.row.parked), "") if seat.row.parked else ("", "")


def _rate(seat: Seat) -> Cell:
    return (UNKNOWN, "dim") if seat.rate is None else (count(seat.rate), "" if seat.rate else "dim")


def _accept(seat: Seat) -> Cell:
    length = seat.row.accept_length
    return (f"{length:.2f}", "") if length else (UNKNOWN, "dim")


def _idle(seat: Seat) -> Cell:
    style = "dim" if seat.idle is None else "yellow" if seat.idle > 0.5 else ""
    return share(seat.idle), style


def _heard(seat: Seat) -> Cell:
    return age(seat.row.silent_s), "bold red" if seat.row.silent_s > SILENT_S else ""


SEATS: tuple[Column[Seat], ...] = (
    Column("worker", 13, _worker, _name, most=26),
    Column("host", 8, lambda seat: (clean(seat.row.host), ""), lambda seat: seat.row.host, rank=8, most=16),
    Column("ver", 5, _version, lambda seat: seat.row.version, rank=4, right=True),
    Column("slots", 7, _has, lambda seat: seat.row.held, rank=2, right=True, falling=True),
    Column("ahead", 6, _parked, lambda seat: seat.row.parked, rank=9, right=True, falling=True),
    Column("tok/s", 7, _rate, lambda seat: seat.rate or -1.0, rank=3, right=True, falling=True),
    Column("accept", 7, _accept, lambda seat: seat.row.accept_length, rank=7, right=True, falling=True),
    Column("idle", 5, _idle, lambda seat: -1.0 if seat.idle is None else seat.idle, rank=6, right=True, falling=True),
    Column("heard", 6, _heard, lambda seat: seat.row.silent_s, rank=5, right=True, falling=True),
    Column("does", 16, _doing, lambda seat: _does(seat.row, seat.wrong), rank=1, most=60),
)


@dataclass(frozen=True)
class Hand:
    """A sample in a worker's hands."""

    item: Holding
    longest: int  # tokens of the longest beside it

    @property
    def name(self) -> str:
        return str(self.item.id)

    @property
    def told(self) -> str:
        """As it stands in its row."""
        return f"{step_name(self.item.id.step)} {self.item.id.prompt} {self.item.id.index}"


def hands(row: WorkerRow, filter: str = "") -> list[Hand]:
    """Those in whose rows the filter occurs, the longest held first."""
    longest = max((item.tokens for item in row.holding), default=0)
    found = (Hand(item, longest) for item in row.holding)
    shown = [hand for hand in found if filter.casefold() in hand.told.casefold()]
    return sorted(shown, key=lambda hand: -hand.item.seconds)


BAR = 20


def _grown(hand: Hand) -> Cell:
    cells = round(BAR * hand.item.tokens / hand.longest) if hand.longest else 0
    return "▒" * cells, "yellow" if hand.item.parked else "cyan"


def _step(hand: Hand) -> Cell:
    step = hand.item.id.step
    return step_name(step).removeprefix("step "), "bold" if step >= EVAL else ""


HANDS: tuple[Column[Hand], ...] = (
    Column("step", 8, _step, lambda hand: hand.item.id.step, rank=3),
    Column("prompt", 16, lambda hand: (clean(hand.item.id.prompt), ""), lambda hand: hand.item.id.prompt),
    Column("#", 4, lambda hand: (str(hand.item.id.index), ""), lambda hand: hand.item.id.index, right=True),
    Column(
        "tokens", 7, lambda hand: (count(hand.item.tokens), ""), lambda hand: hand.item.tokens, rank=1, right=True,
        falling=True,
    ),
    Column("", BAR, _grown, rank=5),
    Column(
        "for", 6, lambda hand: (age(hand.item.seconds), ""), lambda hand: hand.item.seconds, rank=2, right=True,
        falling=True,
    ),
    Column("", 13, lambda hand: ("written ahead" if hand.item.parked else "", "yellow"), rank=4),
)  # fmt: skip


def find(workers: Sequence[WorkerRow], name: str) -> WorkerRow | None:
    return next((row for row in workers if row.worker == name), None)
