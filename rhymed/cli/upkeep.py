"""`rhymed history verify`, `repair` and `backup`: the store as bytes on a disk, not as samples."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def add(verbs: Any, make: Callable[..., Any]) -> None:
    """`make` makes a parser of name, help and examples."""
    parser = make(
        verbs,
        "verify",
        "read every byte of a run's store and tell what is damaged; exit status 1 where something is",
        "rhymed history verify runs/quickstart",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a run's folder; the run may be alive")
    parser.add_argument("--json", action="store_true", help="as one JSON object, with all that is damaged")
    parser.set_defaults(handler=verify)
    parser = make(
        verbs,
        "repair",
        "leave out what is damaged in a run's store and save the rest; the damaged file is kept",
        "rhymed history repair runs/quickstart",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a run that is not alive")
    parser.set_defaults(handler=repair)
    parser = make(
        verbs,
        "backup",
        "copy a run's store, while it is written, to a folder that opens as a run's",
        "rhymed history backup runs/latest /mnt/copies/tuesday",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a run's folder; the run may be alive")
    parser.add_argument("target", type=Path, metavar="DEST", help="a folder that is not there yet")
    parser.set_defaults(handler=backup)


def verify(arguments: argparse.Namespace) -> int:
    """Exit status 1 where something is damaged."""
    from rhymed.history.maintenance import as_json, render_verify, verify_run

    report, file_bytes = verify_run(arguments.run)
    print(
        json.dumps(as_json(report), indent=2) if arguments.json else render_verify(report, arguments.run, file_bytes)
    )
    return int(not report.sound)


def repair(arguments: argparse.Namespace) -> int:
    from rhymed.history.maintenance import render_repair, repair_run

    print(render_repair(*repair_run(arguments.run), arguments.run))
    return 0


def backup(arguments: argparse.Namespace) -> int:
    from rhymed.history.maintenance import backup_run, render_backup

    report = backup_run(arguments.run, arguments.target)
    print(render_backup(report, arguments.run, arguments.target))
    return 0
