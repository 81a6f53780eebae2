"""`rhymed history compare`, `audit`, `verify`, `repair` and `backup`: is a run's store what it should be?"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rhymed.cli.options import add_examples, add_run, add_take_over, count, make_parser, path_or_url
from rhymed.output import show
from rhymed.text import readable


def add(verbs: Any) -> None:
    _add_compare(verbs)
    _add_audit(verbs)
    _add_maintenance(verbs)


def _add_compare(verbs: Any) -> None:
    parser = make_parser(
        verbs,
        "compare",
        "compare two runs: which samples differ, and which run is better; exit status 1 if samples differ",
        compare,
    )
    add_examples(parser, "rhymed history compare runs/plain runs/fast")
    parser.add_argument("first", type=Path, metavar="RUN", help="a run's folder")
    parser.add_argument("second", type=Path, metavar="OTHER", help="another run's folder")
    parser.add_argument(
        "--json",
        action="store_true",
        help="as one JSON object, with all differences; there tokens count from 0, in sentences from 1",
    )


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
    parser = make_parser(
        verbs,
        "backup",
        "copy a run's store, even while it is written: to a new run folder, or what is new to a URL",
        backup,
    )
    add_examples(
        parser,
        "rhymed history backup runs/latest /mnt/copies/tuesday",
        "rhymed history backup runs/latest s3://bucket/copies/mine",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a run's folder; the run may be alive")
    parser.add_argument(
        "target", type=path_or_url, metavar="DEST", help="a new folder; or a URL, also of earlier backups of this run"
    )
    parser = make_parser(verbs, "restore", "make a run's folder of its copy at a URL", restore)
    add_examples(
        parser,
        "rhymed history restore s3://bucket/runs/mine --list",
        "rhymed history restore s3://bucket/runs/mine other --steps 20",
    )
    parser.add_argument("url", metavar="URL", help="of the run's copy: run.remote/NAME")
    parser.add_argument(
        "folder", nargs="?", type=Path, default="runs", metavar="FOLDER", help="gets NAME (default: runs)"
    )
    parser.add_argument("--steps", type=count, metavar="N", help="the newest backup of at most N trained steps")
    parser.add_argument("--list", action="store_true", help="list the backups, and restore nothing")
    add_take_over(parser, "another machine had the run and is gone; refused while that one is alive")


def verify(arguments: argparse.Namespace) -> int:
    """Exit status 1 where something is damaged."""
    from rhymed.history.maintenance import as_json, render_verify, verify_run

    report, file_bytes = verify_run(arguments.run)
    text = readable(render_verify(report, arguments.run, file_bytes))
    show(json.dumps(as_json(report), indent=2) if arguments.json else text)
    return int(not report.sound)


def repair(arguments: argparse.Namespace) -> int:
    from rhymed.history.maintenance import render_repair, repair_run

    show(render_repair(*repair_run(arguments.run), arguments.run))
    return 0


def backup(arguments: argparse.Namespace) -> int:
    if isinstance(arguments.target, str):
        from rhymed.history.folder import find
        from rhymed.remote.byhand import back_up

        find(arguments.run)
        show(back_up(arguments.run, arguments.target))
        return 0
    from rhymed.history.maintenance import backup_run, render_backup

    show(render_backup(backup_run(arguments.run, arguments.target), arguments.run, arguments.target))
    return 0


def restore(arguments: argparse.Namespace) -> int:
    import time

    from rhymed.remote.byhand import listed
    from rhymed.remote.restore import render
    from rhymed.remote.restore import restore as fetch

    if arguments.list:
        show(listed(arguments.url, time.time()))
        return 0
    restored = fetch(arguments.url, arguments.folder, steps=arguments.steps, take_over=arguments.take_over)
    show(f"{render(restored, arguments.url, time.time())}\nrhymed run --resume {restored.folder} continues it")
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
        show(json.dumps({**result.json(), "better": found and found.json()}, indent=2))
    else:
        show("\n".join([text, verdict.render(found)] if found else [text]))
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
    show(json.dumps(answer, indent=2) if arguments.json else readable(text))
    return int(wrong)
