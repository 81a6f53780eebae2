"""`rhymed history compare`, `audit`, `verify`, `repair` and `backup`: is a run's store what it should be?"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rhymed.cli.options import add_examples, add_run, make_parser
from rhymed.text import readable


def add(verbs: Any) -> None:
    _add_compare(verbs)
    _add_audit(verbs)
    _add_maintenance(verbs)


def _add_compare(verbs: Any) -> None:
    parser = make_parser(
        verbs,
        "compare",
        "compare two runs: the same samples? which is better? exit status 1 if samples differ",
        compare,
    )
    add_examples(parser, "rhymed history compare runs/plain runs/fast")
    parser.add_argument("first", type=Path, metavar="RUN", help="a run's folder")
    parser.add_argument("second", type=Path, metavar="OTHER", help="another run's folder")
    parser.add_argument("--json", action="store_true", help="as one JSON object, with every sample that differs")


def _add_audit(verbs: Any) -> None:
    parser = make_parser(
        verbs,
        "audit",
        "check that every sample was trained exactly once or dropped with a reason; exit status 1 if not",
        audit,
    )
    add_examples(
        parser, "rhymed history audit runs/quickstart", "rhymed history audit runs/killed --against runs/calm"
    )
    add_run(parser)
    parser.add_argument(
        "--against", type=Path, metavar="OTHER", help="another run that should be identical bit for bit"
    )
    parser.add_argument("--json", action="store_true", help="as one JSON object")


def _add_maintenance(verbs: Any) -> None:
    parser = make_parser(
        verbs, "verify", "read a run's whole store and list damaged entries; exit status 1 if there are any", verify
    )
    add_examples(parser, "rhymed history verify runs/quickstart")
    parser.add_argument("run", type=Path, metavar="RUN", help="a run's folder; the run may be alive")
    parser.add_argument("--json", action="store_true", help="as one JSON object, with all damaged entries")
    parser = make_parser(
        verbs, "repair", "write a new store with everything readable; the damaged file is kept", repair
    )
    add_examples(parser, "rhymed history repair runs/quickstart")
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a run that is not alive")
    parser = make_parser(verbs, "backup", "copy a run's store, even while it is written, to a new run folder", backup)
    add_examples(parser, "rhymed history backup runs/latest /mnt/copies/tuesday")
    parser.add_argument("run", type=Path, metavar="RUN", help="a run's folder; the run may be alive")
    parser.add_argument("target", type=Path, metavar="DEST", help="a new folder")


def verify(arguments: argparse.Namespace) -> int:
    """Exit status 1 where something is damaged."""
    from rhymed.history.maintenance import as_json, render_verify, verify_run

    report, file_bytes = verify_run(arguments.run)
    text = readable(render_verify(report, arguments.run, file_bytes))
    print(json.dumps(as_json(report), indent=2) if arguments.json else text)
    return int(not report.sound)


def repair(arguments: argparse.Namespace) -> int:
    from rhymed.history.maintenance import render_repair, repair_run

    print(render_repair(*repair_run(arguments.run), arguments.run))
    return 0


def backup(arguments: argparse.Namespace) -> int:
    from rhymed.history.maintenance import backup_run, render_backup

    print(render_backup(backup_run(arguments.run, arguments.target), arguments.run, arguments.target))
    return 0


def compare(arguments: argparse.Namespace) -> int:
    """Exit status 1 where more than near ties differ, whichever run is better."""
    from rhymed.errors import ConfigError
    from rhymed.history.compare import samples
    from rhymed.history.folder import open_folder
    from rhymed.several import better, verdict

    if arguments.first.resolve() == arguments.second.resolve():
        raise ConfigError(f"{arguments.first} and {arguments.second} are the same run: name two different runs")
    with open_folder(arguments.first) as first, open_folder(arguments.second) as second:
        result = samples.compare(first, second)
        text = readable(samples.render(result, first.name, second.name))
        folders = first.folder, second.folder
    found = better.compare(*folders)
    if arguments.json:
        print(json.dumps({**result.json(), "better": found and found.json()}, indent=2))
    else:
        print("\n".join([text, verdict.render(found)] if found else [text]))
    return int(not result.same)


def audit(arguments: argparse.Namespace) -> int:
    """Exit status 1 where a sample is not accounted for, or the two runs differ."""
    from rhymed.history.compare import audit as audits
    from rhymed.history.compare import runs
    from rhymed.history.folder import open_folder

    with open_folder(arguments.run) as folder:
        result = audits.audit(folder)
        answer, text, wrong = {"audit": result.json()}, audits.render(result, folder.name), bool(result.wrong)
    if arguments.against is not None:
        with open_folder(arguments.against) as other:
            comparison = runs.compare_runs(folder.folder, other.folder)
            answer["against"] = comparison.json()
            text += "\n" + runs.render(comparison, folder.name, other.name)
            wrong = wrong or bool(comparison.wrong)
    print(json.dumps(answer, indent=2) if arguments.json else readable(text))
    return int(wrong)
