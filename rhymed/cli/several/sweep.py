"""`rhymed sweep`: a run for every combination of settings, one after the other or several at once."""

from __future__ import annotations

import argparse
import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rhymed.cli.options import add_examples, add_override, count, make_parser
from rhymed.output import show

if TYPE_CHECKING:
    from rhymed.sweep.places import Places
    from rhymed.sweep.plan import Job, Sweep

FITTING = 0  # --parallel without a number: as many as fit


def add(commands: Any) -> None:
    parser = make_parser(
        commands, "sweep", "run every combination of several settings; call it again to continue", handle
    )
    add_examples(
        parser,
        "rhymed sweep my.toml -o trainer.lr=1e-6,1e-5",
        "rhymed sweep my.toml -o trainer.lr=1e-6,1e-5 -o run.seed=0,1 --parallel",
        "rhymed sweep my.toml -o 'trainer.betas=[0.9,0.95],[0.9,0.99]'   # two lists",
    )
    parser.add_argument("config", type=Path, metavar="CONFIG", help="TOML file of all runs")
    parser.add_argument("--name", default="", metavar="NAME", help="of the sweep's folder (default: RUN-sweep)")
    parser.add_argument(
        "--parallel",
        nargs="?",
        type=count,
        const=FITTING,
        default=1,
        metavar="N",
        help="N runs at once, if they fit into memory and GPUs; without N: as many as fit (default: 1)",
    )
    parser.add_argument("--plain", action="store_true", help="one line per step, no live table")
    add_override(parser, "a setting; with several values, e.g. trainer.lr=1e-6,1e-5, a run for each; repeatable")


def handle(arguments: argparse.Namespace) -> int:
    from rhymed.service.stdio import ignore_output_errors
    from rhymed.sweep.folder import hold
    from rhymed.sweep.plan import plan

    with ignore_output_errors(), _interruptible():
        sweep = plan(arguments.config, arguments.override, arguments.name)
        with hold(sweep.folder):
            return _work(arguments, sweep)


def _work(arguments: argparse.Namespace, sweep: Sweep) -> int:
    from rhymed.cli.several.runs import show as show_runs
    from rhymed.several import manifest
    from rhymed.several.listing import listing
    from rhymed.sweep.check import check, check_together
    from rhymed.sweep.execute import Executor
    from rhymed.sweep.views import view_of

    show(f"sweep    {sweep.folder}: {_counts(sweep)}", flush=True)
    jobs = sweep.todo()
    check(jobs, lambda line: show(line, flush=True))
    manifest.write(sweep.folder, sweep.manifest)
    places = _places(arguments.parallel, jobs)
    if len(places) > 1:
        check_together(jobs)
    view = view_of(sweep, plain=arguments.plain)
    executor = Executor(sweep, places, view)
    try:
        executor.run(jobs)
    finally:
        view.close()
    show_runs(listing(sweep.folder))
    show(_end(sweep, executor.interrupted), flush=True)
    return 130 if executor.interrupted else int(bool(executor.failed))


def _counts(sweep: Sweep) -> str:
    from rhymed.text import counted

    todo = sweep.todo()
    begun = sum(job.exists for job in todo)
    parts = [f"{len(sweep.jobs) - len(todo)} finished", f"{begun} to continue", f"{len(todo) - begun} to start"]
    return f"{counted(len(sweep.jobs), 'run')}: " + ", ".join(part for part in parts if not part.startswith("0 "))


def _places(wanted: int, jobs: list[Job]) -> Places:
    from rhymed.check.machine import measure
    from rhymed.gpus.inventory import here
    from rhymed.sweep.places import Places, load_of, places

    if wanted == 1 or not jobs:
        return Places([{}])
    inventory = here()
    loads = [load_of(job.config, job.memory, inventory) for job in jobs]
    found = places(wanted or None, loads, measure(jobs[0].folder), inventory)
    show(f"parallel {len(found)} at once{f' instead of {wanted}: {found.why}' if found.why else ''}", flush=True)
    return found


def _end(sweep: Sweep, interrupted: bool) -> str:
    if interrupted:
        return "interrupted: the same command continues where the runs are"
    better = "whether one run is better than another: rhymed history compare RUN OTHER"
    return f"{better}\ncurves, settings and samples side by side: rhymed view {sweep.folder}"


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM ends the sweep as Ctrl-C does; a terminal that closes does not end it."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, interrupt)}
    before[signal.SIGHUP] = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
