"""`rhymed top`: shows and steers a run in a live terminal."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rhymed.core.errors import ConfigError
from rhymed.start.cli.options import LATEST, add_examples, add_where, number_type

if TYPE_CHECKING:
    from rhymed.start.cli.steer import Where


def add(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(handler=handle)
    add_examples(parser, "rhymed top", "rhymed top runs/quickstart --every 0.5")
    parser.add_argument(
        "--every",
        type=number_type(float, lambda value: 0.1 <= value <= 3600, "of seconds from 0.1 to 3600"),
        default=1.0,
        metavar="S",
        help="seconds between updates (default: 1)",
    )
    add_where(parser)


def handle(arguments: argparse.Namespace) -> int:
    import asyncio

    from rhymed.start.cli.steer import where_of

    whole = all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
    if not whole or os.environ.get("TERM", "dumb") == "dumb":
        raise ConfigError("`rhymed top` needs a terminal; `rhymed queues --json --watch` is for pipes and files")
    try:
        import textual  # noqa: F401
    except ImportError:
        raise ConfigError(
            "`rhymed top` needs the package textual: pip install 'rhymed[top]';"
            " `rhymed queues --watch` works without it"
        ) from None
    run = "" if arguments.broker or arguments.run == LATEST else f" --run {arguments.run}"
    return asyncio.run(_show(where_of(arguments), run, arguments.every))


async def _show(where: Where, run: str, every_s: float) -> int:
    """`run`: the end of commands that are shown, so that they are about this run."""
    import asyncio

    from rhymed.core.run.client import ask_or_explain
    from rhymed.core.wire.sockets import Client
    from rhymed.show.top.app import Top
    from rhymed.show.top.state import Connection, UiState

    client = Client(where.address, peer="broker", keys=where.keys)
    try:
        ui = UiState(queues=(first := await ask_or_explain(client)))
        ui.connection = Connection("live", time.monotonic(), where.address)
        ui.run = run
        if where.folder is not None:
            ui.history.add_steps(_past(where.folder))
        ui.history.add(first)
        app = Top(client, ui, every_s, folder=where.folder)
        for number in (signal.SIGTERM, signal.SIGHUP):  # restores the terminal
            asyncio.get_running_loop().add_signal_handler(number, app.exit)
        await app.run_async()
        return app.return_code or 0
    finally:
        client.close()


def _past(folder: Path) -> list[dict[str, Any]]:
    """The earlier steps of the run, if its folder is on this machine."""
    from rhymed.core.run.folder import layout_of_folder, read_metrics

    return read_metrics(layout_of_folder(folder))
