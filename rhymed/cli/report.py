"""`rhymed report`: a run as one HTML page, with its pictures next to it."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import Any

from rhymed.cli.options import add_examples, add_run, make_parser
from rhymed.output import show


def add(commands: Any) -> None:
    parser = make_parser(commands, "report", "write a run's report: one HTML page, and its pictures as PNG", handle)
    add_examples(parser, "rhymed report runs/quickstart", "rhymed report runs/quickstart --out /tmp/shared")
    add_run(parser)
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write there (default: the run's folder)")
    parser.add_argument(
        "--wait",
        action="store_true",
        help="wait for the end of the run, then also write the summary, as `rhymed run` does",
    )
    parser.add_argument("--ended", action="store_true", help=argparse.SUPPRESS)  # used by `rhymed run`


def handle(arguments: argparse.Namespace) -> int:
    from rhymed.launch.wait import write_at_the_end
    from rhymed.report.write import write

    if arguments.wait:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # stopping the wait is no failure
        show(write_at_the_end(arguments.run, arguments.out))
        return 0
    show(write(arguments.run, arguments.out, ended=arguments.ended))
    return 0
