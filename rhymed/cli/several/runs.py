"""`rhymed runs`: the runs of a folder as a table."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rhymed.cli.options import add_examples, add_json, make_parser, print_json

RUNS = Path("runs")
UNLIMITED = 10_000  # characters of a line that goes into a file or a pipe


def add(commands: Any) -> None:
    parser = make_parser(commands, "runs", "list the runs of a folder: state, steps, rewards, time left", handle)
    add_examples(parser, "rhymed runs", "rhymed runs runs/my-sweep", "rhymed runs --json")
    parser.add_argument(
        "folder", nargs="?", type=Path, default=RUNS, metavar="FOLDER", help=f"of runs (default: {RUNS})"
    )
    add_json(parser)


def handle(arguments: argparse.Namespace) -> int:
    from rhymed.several.find import config_of
    from rhymed.several.listing import listing

    folder: Path = arguments.folder.expanduser()
    if folder.is_dir() and _is_run(folder, config_of):
        from rhymed.errors import ConfigError

        raise ConfigError(f"{folder} is one run's folder, not a folder of runs: rhymed runs {folder.parent}")
    found = listing(folder)
    if arguments.json:
        print_json(found.json())
    else:
        show(found)
    return 0


def _is_run(folder: Path, config_of: Any) -> bool:
    try:
        return config_of(folder) is not None
    except (OSError, ValueError):
        return False


def show(found: Any) -> None:
    """A `Listing` on the terminal."""
    import os
    import time

    from rhymed.console import Terminal
    from rhymed.several.table import notes, table

    console = Terminal(highlight=False)
    if found.runs:
        if not console.is_terminal and "COLUMNS" not in os.environ:
            console.width = UNLIMITED
        console.print(table(found, time.time(), console.width))
    for line in notes(found):
        console.print(line, markup=False, soft_wrap=True)
