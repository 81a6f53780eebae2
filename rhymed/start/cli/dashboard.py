"""The dashboard of a living, finished or crashed run, from its folder: `rhymed view` serves it or saves it as a file,
and `rhymed report` saves it at the run's end."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rhymed.core.errors import ConfigError
from rhymed.core.output import show
from rhymed.core.text import counted, quoted
from rhymed.start.cli.options import add_examples, add_run

if TYPE_CHECKING:
    from rhymed.core.wire.addresses import HttpAddress
    from rhymed.show.dashboard.snapshots import LiveRun

ADDRESS = "127.0.0.1:8430"
SHOWN_AT = "RHYMED_SHOWN_AT"  # variable: its address for browsers if the port is published elsewhere


def add(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(handler=handle)
    add_examples(
        parser,
        "rhymed view runs/quickstart",
        "rhymed view runs/quickstart --http 0.0.0.0:8430",
        "rhymed view runs/quickstart --save quickstart.html",
    )
    add_run(parser)
    parser.add_argument(
        "--http",
        default=ADDRESS,
        metavar="ADDRESS",
        help=f"default: {ADDRESS}; if its port is taken, the next free one; a non-loopback address requires a token",
    )
    parser.add_argument(
        "--save", type=Path, metavar="FILE", help="write the page with its data into one HTML file, and serve nothing"
    )


def handle(arguments: argparse.Namespace) -> int:
    import asyncio

    from rhymed.core.wire.addresses import parse_http

    folder, address = folder_of(arguments.run), parse_http(arguments.http)
    if arguments.save:
        from rhymed.show.dashboard.saved import write

        show(write(folder, arguments.save))
        return 0
    try:
        asyncio.run(_serve(folder, address))
    except KeyboardInterrupt:
        return 0
    return 0


def folder_of(run: Path) -> Path:
    """A run's folder. Raises `ConfigError`."""
    from rhymed.core.run.folder import no_run

    folder = run.expanduser().resolve()
    if not folder.is_dir():
        raise ConfigError(no_run(run.expanduser()))
    if not is_run(folder):
        from rhymed.records.several import find

        if runs := find(folder)[0]:
            raise ConfigError(
                f"{run} holds {counted(len(runs), 'run')}: name one, e.g. {run / runs[0].name}; `rhymed runs"
                f" {quoted(run)}` lists them, and TensorBoard, trackio and W&B draw their curves in one chart"
            )
        raise ConfigError(no_run(run.expanduser()))
    return folder


def is_run(folder: Path) -> bool:
    """Whether something of a run is in it."""
    return any((folder / name).exists() for name in ("config.json", "metrics.jsonl", "store"))


async def _serve(folder: Path, address: HttpAddress) -> None:
    import asyncio

    from rhymed.show.dashboard.auth import TOKEN_FILE, TOKEN_VARIABLE
    from rhymed.show.dashboard.server import serving

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    live, close = live_of(folder)
    async with contextlib.AsyncExitStack() as opened:
        opened.callback(close)
        taken = await opened.enter_async_context(serving(folder, address, live))
        url = os.environ.get(SHOWN_AT) or taken.url
        show(f"{folder.name} at {url}   (Ctrl-C to quit)", flush=True)
        if not taken.is_local:
            where = TOKEN_VARIABLE if os.environ.get(TOKEN_VARIABLE) else folder / TOKEN_FILE
            show(f"open it once as {url}?token=…, with the token in {where}", flush=True)
        await stop.wait()


def live_of(folder: Path) -> tuple[LiveRun, Callable[[], None]]:
    """The source of the run's snapshots while it is alive, and what closes that."""
    from rhymed.core.config.load import load_run
    from rhymed.core.run.layout import layout_of
    from rhymed.show.dashboard.snapshots import LiveRun, SnapshotClient, never

    try:
        where = layout_of(load_run(folder))
    except ConfigError:
        return LiveRun(never), lambda: None
    if where.folder != folder:  # a moved folder has no living run
        return LiveRun(never), lambda: None
    client = SnapshotClient(where)
    return LiveRun(client, client.is_gone), client.close


# `rhymed report`: the dashboard's page of a run as one file.


def add_report(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(handler=handle_report)
    add_examples(parser, "rhymed report runs/quickstart", "rhymed report runs/quickstart --out shared")
    add_run(parser)
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write there (default: the run's folder)")
    parser.add_argument(
        "--wait",
        action="store_true",
        help="wait for the end of the run, then also write the summary, as `rhymed run` does",
    )
    parser.add_argument("--ended", action="store_true", help=argparse.SUPPRESS)  # used by `rhymed run`


def handle_report(arguments: argparse.Namespace) -> int:
    from rhymed.show.dashboard.saved import write
    from rhymed.start.launch.wait import write_at_the_end

    if arguments.wait:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # stopping the wait is no failure
        show(write_at_the_end(arguments.run, arguments.out))
        return 0
    show(write(arguments.run, arguments.out / "report.html" if arguments.out else None, ended=arguments.ended))
    return 0
