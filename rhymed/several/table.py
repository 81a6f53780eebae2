"""The list of runs on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rhymed.several.listing import Listing
from rhymed.several.rows import RunRow
from rhymed.style import plain_table
from rhymed.text import age, counted, number

if TYPE_CHECKING:
    from rich.table import Table

COLUMNS = ("name", "state", "step", "reward", "held-out", "elapsed", "left", "age")
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
    shown = plain_table()
    for column in COLUMNS:
        name = column == "name"
        shown.add_column(
            column, justify="left" if column in LEFT else "right", overflow="fold", no_wrap=not name, min_width=4
        )
    for row in listing.runs:
        shown.add_row(*cells(row, now), style="" if row.state != "waiting" else COLOURS["waiting"])
    return shown


def cells(row: RunRow, now: float) -> list[str]:
    """One text per column; markup only in the state."""
    from rich.markup import escape

    colour = COLOURS.get(row.state)
    steps = "?" if row.steps is None else str(row.steps)
    return [
        escape(row.name),
        f"[{colour}]{row.state}[/]" if colour else row.state,
        "-" if row.state == "waiting" else f"{row.step}/{steps}",
        number(row.reward, ".3f"),
        number(row.held_out, ".3f"),
        age(row.elapsed_s) if row.elapsed_s else "-",
        "-" if row.eta_s is None else age(row.eta_s),
        "-" if row.started is None else age(now - row.started),
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
