"""`rhymed run`: a whole run on this machine, from checks to summary."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rhymed.core.errors import ConfigError
from rhymed.core.output import show
from rhymed.core.text import quoted
from rhymed.start.cli.options import add_examples, add_override, add_take_over, path_or_url

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from rhymed.core.config import Config
    from rhymed.core.run.layout import RunLayout
    from rhymed.start.launch.program import Program


def add(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(handler=handle)
    add_examples(
        parser,
        "rhymed run configs/quickstart.toml -o trainer.lr=1e-5 -o run.seed=1",
        "rhymed run --resume runs/quickstart",
        "rhymed run --resume s3://bucket/runs/quickstart",
    )
    parser.add_argument(
        "config",
        type=path_or_url,
        metavar="CONFIG",
        help="TOML file; with --resume: the run's folder, or the URL of its copy in run.remote",
    )
    parser.add_argument("--resume", action="store_true", help="continue the run in folder CONFIG")
    add_take_over(parser, "with --resume: another machine had the run and is gone; refused while that one is alive")
    parser.add_argument(
        "--without-history",
        action="store_true",
        help="with --resume: continue from the newest checkpoint with an empty store; the old one is kept",
    )
    parser.add_argument("--plain", action="store_true", help="one line per step, no live screen")
    add_override(parser)


def handle(arguments: argparse.Namespace) -> int:
    from rhymed.start.launch.program import shown

    with shown() as program:
        if isinstance(arguments.config, str):
            arguments.config = _restored(arguments)
        config, where = _load(arguments)
        if arguments.resume and (done := _finished(config, where)):
            program.begun(where.folder)
            show(done, flush=True)
            return 0
        made = _prepare(config, where, arguments)
        return supervise(*made, program, plain=arguments.plain, take_over=arguments.take_over)


def supervise(config: Config, where: RunLayout, program: Program, *, plain: bool, take_over: bool = False) -> int:
    """The run in its folder. Call within `shown`, with what it yields."""
    import uvloop

    from rhymed.core.run import folder
    from rhymed.core.run.lease import leased
    from rhymed.core.service.logfile import configure

    configure(where.log("run"), config.run.log_level)
    plain = plain or not (sys.stdout and sys.stdout.isatty())
    with folder.hold(where) as held, leased(where.folder, locked=held.locked, take_over=take_over) as lease:
        if config.run.remote:
            from rhymed.records.remote import head

            head.claim(config, where, take_over=take_over)
        from rhymed.core.run import edited, provenance
        from rhymed.start.launch.screen import Screen
        from rhymed.start.launch.session import session

        edited.start(where.folder, provenance.now(sys.argv[1:], config))
        program.begun(where.folder)
        screen = Screen(config, where, plain=plain)
        status, failure = uvloop.run(session(config, where, held, lease, screen))
        if failure:
            screen.failed(failure)
            program.failed("RunFailed", failure)
        return int(status)


def _restored(arguments: argparse.Namespace) -> Path:
    """The folder of a run that is copied from shared storage."""
    from rhymed.records.remote.restore import render, restore

    url, key = arguments.config, "run.folder="
    if not arguments.resume:
        raise ConfigError(f"{url} is no file: rhymed run --resume {quoted(url)} continues a run that is there")
    folder = next((one for one in reversed(arguments.override) if one.startswith(key)), f"{key}runs")
    show(f"restore  reading {url}", flush=True)
    restored = restore(url, Path(folder.removeprefix(key)), take_over=arguments.take_over)
    show(render(restored, url, time.time()), flush=True)
    return restored.folder


def _load(arguments: argparse.Namespace) -> tuple[Config, RunLayout]:
    """The configuration and its folder, which exists if the run is to be resumed."""
    from rhymed.core.config.load import is_of_run, load_config
    from rhymed.core.run import folder
    from rhymed.core.run.layout import layout_of
    from rhymed.start.launch.resumable import refuse_fewer

    path: Path = arguments.config
    if arguments.without_history and not arguments.resume:
        raise ConfigError("--without-history: only a run that is resumed has a history to leave behind; add --resume")
    if arguments.resume:
        path = path if path.is_file() else path / "config.json"
        if not path.exists():
            raise ConfigError(f"--resume: {folder.no_run(arguments.config)}")
    config = load_config(path, arguments.override)
    where = layout_of(config)
    if arguments.resume and not where.folder.exists():
        raise ConfigError(f"--resume: {where.folder} does not exist")
    if arguments.resume and is_of_run(path) and not where.folder.samefile(path.parent):
        raise ConfigError(
            f"--resume: {path.parent} is named, but run.folder and run.name (-o, or RHYMED_RUN__… of the environment)"
            f" name {where.folder}: leave those settings out, or name that folder"
        )
    if arguments.resume and where.config.exists():
        earlier = load_config(where.config, (), {})
        folder.check_same(earlier, config, where)
        with _quietly():
            refuse_fewer(earlier, config, where)
    return config, where


def _quietly() -> AbstractContextManager[None]:
    """The dataset's warnings were shown at the first start."""
    from rhymed.check.report import Report

    return Report().listening()


def _finished(config: Config, where: RunLayout) -> str:
    """What is printed for a finished run instead of starting it; empty: there is something to do."""
    from rhymed.core.config.load import load_config
    from rhymed.start.launch.resumable import finished

    if not where.config.exists() or load_config(where.config, (), {}).eval != config.eval:
        return ""
    with _quietly():
        return finished(config, where)


def _prepare(config: Config, where: RunLayout, arguments: argparse.Namespace) -> tuple[Config, RunLayout]:
    """Check everything that can fail before a process starts, and create or open the folder."""
    from rhymed.core.run import folder, lease
    from rhymed.start.launch import resumable

    if arguments.resume:
        lease.refuse(where.folder, take_over=arguments.take_over)
    config = placed(config)
    refuse_early(config, resume=arguments.resume)
    if arguments.without_history:
        show(f"warning  {resumable.without_history(config, where)}", flush=True)
    if arguments.resume:
        resumable.check(where)
        _compare_inputs(config, where)
        return config, folder.save(config)
    if config.run.remote:
        from rhymed.records.remote import head

        head.refuse_taken(folder.with_free_name(config))
    created, where = folder.create(config)
    if created.run.name != config.run.name:
        taken = f"{config.run.name} is another run (`rhymed runs` says whether it is alive)"
        show(f"warning  {taken}: this run is called {created.run.name}", flush=True)
    return created, where


def _compare_inputs(config: Config, where: RunLayout) -> None:
    """Names the files that were edited since the run's newest start. Raises `RunMismatch` for those that may not."""
    from rhymed.core.run import edited
    from rhymed.start.launch import rows

    for line in edited.accepted(where.folder, config):
        show(f"warning  {line}", flush=True)
    with _quietly():
        rows.compare(config, where.folder)


def placed(config: Config) -> Config:
    """With what follows from the cluster that places its processes. Raises `ConfigError`: it cannot."""
    if config.placement.engine == "local":
        return config
    from rhymed.placement.ray.cluster import prepared

    return prepared(config)


def refuse_early(config: Config, *, resume: bool = False) -> None:
    """Raises `ConfigError` with everything that would make the run fail, as far as seconds of checking show."""
    from rhymed.check.dryrun import quick_check

    show("check    model, data, prompts, rewards, addresses, memory, disk", flush=True)
    report = quick_check(config, resume=resume)
    for warning in report.warnings:
        show(f"warning  {warning}", flush=True)
    if report.errors:
        raise ConfigError("\n".join(report.errors))
    show(f"model    {report.model}", flush=True)
