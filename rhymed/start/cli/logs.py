"""`rhymed logs`: the logs of all processes of a run by time, or the story of one sample."""

from __future__ import annotations

import argparse
import datetime
import os
import sys
import time
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rhymed.core.errors import ConfigError
from rhymed.core.output import show, show_json
from rhymed.core.printable import visible
from rhymed.start.cli.options import add_examples, add_run

if TYPE_CHECKING:
    from rhymed.records.logs import Entry, Filter, Log

FURTHER = "RHYMED_FURTHER_RUNS"  # variable: another folder of runs, whose logs of this run's name are included
LOOK_S = 0.3


def add(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(handler=handle)
    add_examples(
        parser,
        "rhymed logs --follow",
        "rhymed logs runs/quickstart --level warning",
        "rhymed logs --since 10m",
        "rhymed logs --sample 3/ab12cd34ab12cd34/0   # the story of one sample",
        "rhymed logs --process 'rollout-*' --json",
    )
    add_run(parser)
    parser.add_argument(
        "--sample", metavar="ID", help="step/prompt/index (from 0, as in the lines), or an unambiguous part of it"
    )
    parser.add_argument(
        "--also", type=Path, action="append", metavar="FOLDER", help="the run's folder of another host or container"
    )
    parser.add_argument("--process", default="", metavar="NAME", help="e.g. broker, or a pattern: 'rollout-*'")
    parser.add_argument(
        "--level", default="debug", choices=["debug", "info", "warning", "error"], help="this level and above"
    )
    parser.add_argument("--since", metavar="TIME", help="30s, 10m, 2h, 1d ago, or 2026-01-31T14:05")
    parser.add_argument(
        "--libraries",
        action="store_true",
        help="also remarks of vLLM, torch and other libraries, whose errors are always shown",
    )
    parser.add_argument("--follow", action="store_true", help="wait for new lines")
    parser.add_argument(
        "--json", action="store_true", help="the lines as written, one JSON object each, libraries included"
    )


def handle(arguments: argparse.Namespace) -> int:
    from rhymed.records.history import story
    from rhymed.records.logs import UNKNOWN_TIME, Filter, Follower, Formatter, merged, since_stamp

    folder: Path = arguments.run
    folders = _log_folders(folder, arguments.also)
    chosen = _chosen(folders, arguments.process)
    sample = ""
    if arguments.sample is not None:
        sample = story.find(folder, arguments.sample, folders, future=arguments.follow)
    libraries = arguments.libraries or arguments.json
    wanted = Filter(arguments.level, arguments.process, sample, libraries)
    now = datetime.datetime.now().astimezone()
    since = since_stamp(arguments.since, now) if arguments.since else UNKNOWN_TIME
    page = Formatter(colours=sys.stdout.isatty() and not os.environ.get("NO_COLOR"))
    follower = Follower(*folders) if arguments.follow else None
    try:
        if sample and not arguments.json:
            sys.stdout.write("\n".join(map(visible, story.summary(folder, sample))) + "\n")
        ends = follower.begins if follower else {}
        found: Iterable[Entry] = _wanted(merged(chosen, since, wanted.needle, ends), wanted)
        if sample:
            found = (story.own(entry, sample) for entry in found)
        shown = _print(found, page, as_json=arguments.json)
        if follower is not None:
            _follow(follower, wanted, page, as_json=arguments.json)
        elif not shown:
            _nothing(arguments, chosen)
    except KeyboardInterrupt:
        return 130
    return 0


def _wanted(entries: Iterable[Entry], wanted: Filter) -> Iterator[Entry]:
    return (entry for entry in entries if wanted.matches(entry) and not wanted.hides(entry))


def _log_folders(folder: Path, also: list[Path] | None) -> list[Path]:
    """The folders with logs of this run, the run's own first. Raises `ConfigError` if one has none."""
    further = [other / "logs" for other in also or ()]
    for place in further:
        if not os.path.isdir(place):
            raise ConfigError(f"--also {place.parent}: it contains no folder logs")
    if elsewhere := os.environ.get(FURTHER):
        further.append(Path(elsewhere) / folder.resolve().name / "logs")
    return list({os.path.realpath(place): place for place in (folder / "logs", *further)}.values())


def _chosen(folders: list[Path], process: str) -> list[Log]:
    """The logs to read. Raises `ConfigError` if there are none."""
    from rhymed.core.run.folder import no_run
    from rhymed.core.wire.limits import raise_file_limit
    from rhymed.records.logs import logs

    available = logs(*folders)
    if not available:
        run = folders[0].parent
        raise ConfigError(f"{folders[0]} has no logs" if run.is_dir() else no_run(run))
    chosen = [log for log in available if not process or fnmatchcase(log.process, process)]
    if not chosen:
        there = ", ".join(sorted({log.process for log in available}))
        raise ConfigError(f"--process {process}: no such process; the run has {there}")
    raise_file_limit()  # a run with thousands of workers has more logs than a process may usually open
    return chosen


def _print(found: Iterable[Entry], page: Any, *, as_json: bool) -> int:
    count = 0
    for entry in found:
        if as_json:
            show_json(_json(entry))
        else:
            sys.stdout.write(page.line(entry))
        count += 1
    return count


def _json(entry: Entry) -> str:
    import msgspec

    if entry.raw:
        return entry.raw.decode(errors="replace")
    return msgspec.json.encode(entry).decode()


def _follow(follower: Any, wanted: Filter, page: Any, *, as_json: bool) -> None:
    while True:
        _print(_wanted(follower.poll(), wanted), page, as_json=as_json)
        sys.stdout.flush()
        time.sleep(LOOK_S)


def _nothing(arguments: argparse.Namespace, chosen: list[Log]) -> None:
    newest = max((file.stat().st_mtime for log in chosen for file in log.files), default=0.0)
    when = datetime.datetime.fromtimestamp(newest)
    show(
        f"no matching line; the last one was written {when:%Y-%m-%d %H:%M:%S}; --libraries has more",
        file=sys.stderr,
    )
