"""`rhymed top`: shows and steers a run in a live terminal."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rhymed.cli.options import LATEST, add_examples, add_where, make_parser

if TYPE_CHECKING:
    from rhymed.cli.live.steer import Where

ASK_S = 5.0


def add(subparsers: Any) -> None:
    parser = make_parser(subparsers, "top", "watch a run in a live terminal: queues, steps, workers, curves", handle)
    add_examples(parser, "rhymed top", "rhymed top runs/quickstart --every 0.5")
    parser.add_argument(
        "--every", type=_seconds, default=1.0, metavar="S", help="seconds between updates (default: 1)"
    )
    add_where(parser)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.1 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.1 to 3600")
    return value


def handle(arguments: argparse.Namespace) -> int:
    import asyncio

    from rhymed.cli.live.steer import where_of
    from rhymed.errors import ConfigError

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
    return asyncio.run(_show(where_of(arguments), arguments.every))


async def _show(where: Where, every_s: float) -> int:
    import asyncio
    import signal
    import time

    from rhymed.run.client import ask_or_explain
    from rhymed.top.app import Top
    from rhymed.top.state import Connection, UiState
    from rhymed.wire.sockets import Client

    client = Client(where.address, peer="broker", keys=where.keys)
    try:
        ui = UiState(queues=(first := await ask_or_explain(client)))
        ui.connection = Connection("live", time.monotonic(), where.address)
        if where.folder not in (None, LATEST):
            ui.run = f" --run {where.folder}"
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
    from rhymed.run.folder import layout_of_folder, read_metrics

    return read_metrics(layout_of_folder(folder))
