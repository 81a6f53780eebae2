"""The list of runs on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from rhymed.several.listing import Listing
from rhymed.several.rows import RunRow
from rhymed.style import plain_table
from rhymed.text import age, counted, number

if TYPE_CHECKING:
    from rich.table import Table

COLUMNS = ("name", "state", "step", "reward", "held-out", "elapsed", "left", "age")
OPTIONAL = ("held-out", "left")  # left out where no run has one
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


def table(listing: Listing, now: float) -> Table:
    """`now`: seconds since 1970."""
    rows = [cells(row, now) for row in listing.runs]
    chosen = [
        at for at, column in enumerate(COLUMNS) if column not in OPTIONAL or any(row[at] != NONE for row in rows)
    ]
    shown = plain_table()
    for at in chosen:
        side: Literal["left", "right"] = "left" if COLUMNS[at] in LEFT else "right"
        shown.add_column(COLUMNS[at], justify=side, overflow="fold", no_wrap=at > 0)
    for row, texts in zip(listing.runs, rows, strict=True):
        shown.add_row(*(texts[at] for at in chosen), style=COLOURS["waiting"] if row.state == "waiting" else "")
    return shown


def cells(row: RunRow, now: float) -> list[str]:
    """One text per column; markup only in the state."""
    from rich.markup import escape

    colour = COLOURS.get(row.state)
    steps = "?" if row.steps is None else str(row.steps)
    return [
        escape(row.name),
        f"[{colour}]{row.state}[/]" if colour else row.state,
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
