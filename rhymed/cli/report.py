"""`rhymed report`: a run as one HTML page, with its pictures beside it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rhymed.cli.options import LATEST, example


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "report",
        help="write a run's report: one HTML page, and its pictures as PNG",
        **example("rhymed report runs/quickstart", "rhymed report runs/quickstart --out /tmp/shared"),
    )
    parser.add_argument(
        "run", nargs="?", type=Path, metavar="RUN", default=LATEST, help=f"a run's folder (default: {LATEST})"
    )
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write there (default: the run's folder)")
    parser.add_argument("--ended", action="store_true", help=argparse.SUPPRESS)  # said by the run itself
    parser.set_defaults(handler=handle)


def handle(arguments: argparse.Namespace) -> int:
    from rhymed.report.write import write

    print(write(arguments.run, arguments.out, ended=arguments.ended))
    return 0
