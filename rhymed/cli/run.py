"""`rhymed run`: a whole run on this machine, from checks to summary."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rhymed.cli.options import add_examples, add_override, make_parser

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from rhymed.config import Config
    from rhymed.launch.events import Program
    from rhymed.run.layout import RunLayout


def add(commands: Any) -> None:
    parser = make_parser(commands, "run", "start, supervise and stop every process of a run on this machine", handle)
    add_examples(
        parser,
        "rhymed run configs/quickstart.toml -o trainer.lr=1e-5 -o run.seed=1",
        "rhymed run --resume runs/quickstart",
    )
    parser.add_argument("config", type=Path, metavar="CONFIG", help="TOML file; with --resume: the run's folder")
    parser.add_argument("--resume", action="store_true", help="continue the run in folder CONFIG")
    parser.add_argument("--plain", action="store_true", help="one line per step, no live screen")
    add_events(parser)
    add_override(parser)


def add_events(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--events",
        action="store_true",
        help="for programs: one JSON object per line on standard output; the run stops when its reader is gone",
    )


def handle(arguments: argparse.Namespace) -> int:
    with output(arguments) as program:
        config, where = _load(arguments)
        if arguments.resume and (done := _finished(config, where)):
            return _nothing_to_do(done, where, program)
        made = _prepare(config, where, resume=arguments.resume)
        return supervise(*made, plain=arguments.plain, program=program)


def output(arguments: argparse.Namespace) -> AbstractContextManager[Program | None]:
    """Where a run is shown: to a program, or (None) on a screen, whose end does not end the run."""
    from rhymed.launch.events import to_program
    from rhymed.service.stdio import ignore_output_errors

    return to_program() if arguments.events else ignore_output_errors()


def supervise(config: Config, where: RunLayout, *, plain: bool, program: Program | None = None) -> int:
    """The run in its folder. Call within `output`, with what it yields."""
    import uvloop

    from rhymed.launch.events import Ended, Started
    from rhymed.run import folder
    from rhymed.service.logfile import configure

    configure(where.log("run"), config.run.log_level)
    plain = plain or not (sys.stdout and sys.stdout.isatty())
    with folder.hold(where):
        from rhymed.launch.screen import Screen
        from rhymed.launch.session import session
        from rhymed.run import provenance

        provenance.note(where.folder, provenance.now(sys.argv[1:], config))
        if program:
            program.send(Started(str(where.folder)))
        status: int = uvloop.run(session(config, where, program or Screen(config, where, plain=plain)))
        if program:
            program.send(Ended(status))
        return status


def _load(arguments: argparse.Namespace) -> tuple[Config, RunLayout]:
    """The configuration and its folder, which exists if the run is to be resumed."""
    from rhymed.config.load import load_config
    from rhymed.errors import ConfigError
    from rhymed.run import folder
    from rhymed.run.layout import layout_of

    path: Path = arguments.config
    if arguments.resume:
        path = path if path.is_file() else path / "config.json"
        if not path.exists():
            meant = folder.near(arguments.config)
            raise ConfigError(f"--resume: {path} does not exist; name a run's folder, e.g. runs/quickstart{meant}")
    config = load_config(path, arguments.override)
    where = layout_of(config)
    if arguments.resume and not where.folder.exists():
        raise ConfigError(f"--resume: {where.folder} does not exist")
    if arguments.resume and where.config.exists():
        folder.check_same(load_config(where.config, (), {}), config, where)
    return config, where


def _finished(config: Config, where: RunLayout) -> str:
    """What is printed for a finished run instead of starting it; empty: there is something to do."""
    from rhymed.check.report import Report
    from rhymed.config.load import load_config
    from rhymed.launch.finished import finished

    if not where.config.exists() or load_config(where.config, (), {}).eval != config.eval:
        return ""
    with Report().listening():  # the dataset's warnings were shown at the first start
        return finished(config, where)


def _nothing_to_do(why: str, where: RunLayout, program: Program | None) -> int:
    from rhymed.launch.events import Ended, Started

    if program:
        program.send(Started(str(where.folder)))
    print(why, flush=True)
    if program:
        program.send(Ended(0))
    return 0


def _prepare(config: Config, where: RunLayout, *, resume: bool) -> tuple[Config, RunLayout]:
    """Check everything that can fail before a process starts, and create or open the folder."""
    from rhymed.run import folder

    refuse_early(config, resume=resume)
    if resume:
        return config, folder.save(config)
    created, where = folder.create(config)
    if created.run.name != config.run.name:
        _warn_renamed(config, created)
    return created, where


def _warn_renamed(wanted: Config, created: Config) -> None:
    from rhymed.run import folder
    from rhymed.run.layout import layout_of

    there = layout_of(wanted)
    holder = folder.holder(there.folder)
    process = f"process {holder}; " if holder else ""
    alive = "is an earlier run" if holder is None else f"is alive ({process}rhymed top --run {there.folder})"
    print(f"warning  {wanted.run.name} {alive}: this run is called {created.run.name}", flush=True)


def refuse_early(config: Config, *, resume: bool = False) -> None:
    """Raises `ConfigError` with everything that would make the run fail, as far as seconds of checking show."""
    from rhymed.check.dryrun import quick_check
    from rhymed.errors import ConfigError

    print("check    model, data, prompts, rewards, addresses, memory, disk", flush=True)
    report = quick_check(config, resume=resume)
    for warning in report.warnings:
        print(f"warning  {warning}", flush=True)
    if report.errors:
        raise ConfigError("\n".join(report.errors))
    print(f"model    {report.model}", flush=True)
