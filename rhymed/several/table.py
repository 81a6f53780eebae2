"""The list of runs on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from rhymed.several.listing import Listing
from rhymed.several.rows import RunRow
from rhymed.style import plain_table
from rhymed.text import age, counted, number, shortened

if TYPE_CHECKING:
    from rich.table import Table

LEAST_NAME = 16  # characters of a name that are kept however narrow the terminal is
BETWEEN = 3  # characters between two columns
COLUMNS = ("name", "state", "step", "reward", "held-out", "elapsed", "left", "age")
OPTIONAL = ("held-out", "left")  # left out where no run has one
NARROW = ("age", "elapsed", "left", "held-out", "reward", "step")  # left out, in this order, where lines are short
NONE = "-"
LEFT = ("name", "state")  # columns that are aligned left
COLOURS = {
    "running": "green",
    "paused": "yellow",
    "held": "yellow",
    "failed": "red",
    "interrupted": "yellow",
    "stopped": "yellow",
    "waiting": "grey50",
    "new": "grey50",
}


def table(listing: Listing, now: float, width: int) -> Table:
    """`now`: seconds since 1970; `width`: characters of a line. One line per run: long names lose their middle, and
    columns are left out that have no room."""
    from rich.text import Text

    rows = [cells(row, now) for row in listing.runs]
    widths = [max([len(column), *(len(row[at]) for row in rows)]) for at, column in enumerate(COLUMNS)]
    chosen = [
        at for at, column in enumerate(COLUMNS) if column not in OPTIONAL or any(row[at] != NONE for row in rows)
    ]
    chosen = _fitting(chosen, widths, width)
    shown = plain_table()
    for at in chosen:
        side: Literal["left", "right"] = "left" if COLUMNS[at] in LEFT else "right"
        shown.add_column(COLUMNS[at], justify=side, no_wrap=True)
    room = max(LEAST_NAME, width - _others(chosen, widths))
    for name, state, *texts in ([row[at] for at in chosen] for row in rows):
        grey = COLOURS["waiting"] if state == "waiting" else ""
        shown.add_row(Text(shortened(name, room)), Text(state, COLOURS.get(state, "")), *texts, style=grey)
    return shown


def _fitting(columns: list[int], widths: list[int], width: int) -> list[int]:
    """Those of the columns that fit next to a name that is cut as far as it may be."""
    for dropped in NARROW:
        if min(widths[0], LEAST_NAME) + _others(columns, widths) <= width:
            break
        columns = [at for at in columns if COLUMNS[at] != dropped]
    return columns


def _others(columns: list[int], widths: list[int]) -> int:
    """Characters of a line that the name does not have."""
    return sum(widths[at] + BETWEEN for at in columns if at > 0) + 2


def cells(row: RunRow, now: float) -> list[str]:
    """One text per column."""
    steps = "?" if row.steps is None else str(row.steps)
    return [
        row.name,
        row.state,
        NONE if row.state == "waiting" else f"{row.step}/{steps}",
        number(row.reward, ".3f"),
        number(row.held_out, ".3f"),
        age(row.elapsed_s) if row.elapsed_s else NONE,
        NONE if row.eta_s is None else age(row.eta_s),
        NONE if row.started is None else age(now - row.started),
    ]


def notes(listing: Listing) -> Iterator[str]:
    """Lines for below the table: why runs failed, and what cannot be read."""
    for row in listing.runs:
        if row.why:
            yield f"{row.name}: {row.why.splitlines()[0]}"
    for one in listing.damaged:
        yield f"damaged: {one.folder}: {one.why}"
    if not listing.runs and not listing.damaged:
        yield f"no runs in {listing.folder}: `rhymed run CONFIG` makes one, in run.folder"
    elif listing.damaged:
        yield f"{counted(len(listing.damaged), 'folder')} left out of the table"
