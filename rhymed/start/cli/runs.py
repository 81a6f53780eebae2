"""`rhymed runs`: the runs of a folder as a table."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rhymed.core.style import plain_table
from rhymed.core.text import age, counted, number
from rhymed.start.cli.options import add_examples, add_json, print_json

if TYPE_CHECKING:
    from rich.table import Table

    from rhymed.records.several import Listing, RunRow

RUNS = Path("runs")
UNLIMITED = 10_000  # characters of a line that goes into a file or a pipe


def add(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(handler=handle)
    add_examples(parser, "rhymed runs", "rhymed runs runs/rates", "rhymed runs --json")
    parser.add_argument(
        "folder", nargs="?", type=Path, default=RUNS, metavar="FOLDER", help=f"of runs (default: {RUNS})"
    )
    add_json(parser)


def handle(arguments: argparse.Namespace) -> int:
    from rhymed.records.several import listing

    found = listing(arguments.folder.expanduser())
    if arguments.json:
        print_json(found.json())
    else:
        show(found)
    return 0


def show(found: Listing) -> None:
    from rhymed.core.console import Terminal

    console = Terminal(highlight=False)
    if found.runs:
        if not console.is_terminal and "COLUMNS" not in os.environ:
            console.width = UNLIMITED
        console.print(table(found, time.time()))
    for line in notes(found):
        console.print(line, markup=False, soft_wrap=True)


COLUMNS = ("name", "state", "step", "reward", "held-out", "age")
LEFT = ("name", "state")  # columns that are aligned left
COLOURS = {"running": "green", "stopped": "yellow"}


def table(listing: Listing, now: float) -> Table:
    """`now`: seconds since 1970. Where lines are short, long names are folded."""
    from rich.text import Text

    shown = plain_table()
    for column in COLUMNS:
        side: Literal["left", "right"] = "left" if column in LEFT else "right"
        shown.add_column(column, justify=side, no_wrap=column != "name", overflow="fold")
    for row in listing.runs:
        name, state, *texts = cells(row, now)
        shown.add_row(Text(name), Text(state, COLOURS.get(state, "")), *texts)
    return shown


def cells(row: RunRow, now: float) -> list[str]:
    """One text per column."""
    return [
        row.name,
        row.state,
        str(row.step) if row.steps is None else f"{row.step}/{row.steps}",
        number(row.reward, ".3f"),
        number(row.held_out, ".3f"),
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
