"""`rhymed view`: serves the dashboard of a living, finished or crashed run from its folder, or of several runs."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rhymed.cli.options import add_examples, add_run, make_parser
from rhymed.output import show

if TYPE_CHECKING:
    from rhymed.dashboard.snapshots import LiveRun, SnapshotClient
    from rhymed.wire.addresses import HttpAddress

ADDRESS = "127.0.0.1:8430"
SHOWN_AT = "RHYMED_SHOWN_AT"  # variable: its address for browsers if the port is published elsewhere


def add(commands: Any) -> None:
    parser = make_parser(commands, "view", "serve the dashboard of a run, or of all runs in a folder", handle)
    add_examples(
        parser,
        "rhymed view runs/quickstart --open",
        "rhymed view runs                    # all of them, side by side",
        "rhymed view runs/quickstart --http 0.0.0.0:8430",
    )
    add_run(parser)
    parser.add_argument(
        "--http",
        default=ADDRESS,
        metavar="ADDRESS",
        help=f"default: {ADDRESS}; if its port is taken, the next free one; a non-loopback address requires a token",
    )
    parser.add_argument("--open", action="store_true", help="also open it in the browser")


def handle(arguments: argparse.Namespace) -> int:
    import asyncio

    from rhymed.wire.addresses import parse_http

    folder, address = folder_of(arguments.run), parse_http(arguments.http)
    try:
        asyncio.run(_serve(folder, address, browser=arguments.open))
    except KeyboardInterrupt:
        return 0
    return 0


def folder_of(run: Path) -> Path:
    """A run's folder, or one that holds runs. Raises `ConfigError` if it is neither."""
    from rhymed.errors import ConfigError
    from rhymed.run.folder import near

    folder = run.expanduser().resolve()
    if not folder.is_dir():
        lack = "is a file" if folder.is_file() else "does not exist"
        raise ConfigError(f"{run} {lack}: name a run's folder, e.g. runs/quickstart{near(run.expanduser())}")
    if not (is_run(folder) or _holds_runs(folder)):
        raise ConfigError(
            f"{run} is not a run's folder: it contains no config.json, no metrics.jsonl and no store, and no runs"
        )
    return folder


def is_run(folder: Path) -> bool:
    """Whether something of a run is in it."""
    return any((folder / name).exists() for name in ("config.json", "metrics.jsonl", "store"))


def _holds_runs(folder: Path) -> bool:
    from rhymed.several.find import find
    from rhymed.several.manifest import FILE

    return (folder / FILE).exists() or bool(find(folder)[0])


async def _serve(folder: Path, address: HttpAddress, *, browser: bool) -> None:
    import asyncio
    import os
    import signal
    import webbrowser

    from rhymed.dashboard.auth import TOKEN_FILE, TOKEN_VARIABLE

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with _served(folder, address) as taken:
        url = os.environ.get(SHOWN_AT) or taken.url
        show(f"{folder.name} at {url}   (Ctrl-C to quit)", flush=True)
        if not taken.is_local:
            where = TOKEN_VARIABLE if os.environ.get(TOKEN_VARIABLE) else folder / TOKEN_FILE
            show(f"open it once as {url}?token=…, with the token in {where}", flush=True)
        if browser:
            await asyncio.to_thread(webbrowser.open, taken.url)
        await stop.wait()


@contextlib.asynccontextmanager
async def _served(folder: Path, address: HttpAddress) -> AsyncIterator[HttpAddress]:
    """The dashboard of this run, or of the runs in this folder."""
    if not is_run(folder):
        from rhymed.dashboard.several.server import serving_several

        async with serving_several(folder, address, live_of) as taken:
            yield taken
        return
    from rhymed.dashboard.server import serving

    live, close = live_of(folder)
    try:
        async with serving(folder, address, live) as taken:
            yield taken
    finally:
        close()


def live_of(folder: Path) -> tuple[LiveRun, Callable[[], None]]:
    """The source of the run's snapshots while it is alive, and what closes that."""
    from rhymed.dashboard.snapshots import LiveRun, never

    client = client_of(folder)
    if client is None:
        return LiveRun(never), lambda: None
    return LiveRun(client, client.is_gone), client.close


def client_of(folder: Path) -> SnapshotClient | None:
    """The client of the run's broker; None if the folder does not contain its address."""
    from rhymed.config.load import load_run
    from rhymed.dashboard.snapshots import SnapshotClient
    from rhymed.errors import ConfigError
    from rhymed.run.layout import layout_of

    try:
        where = layout_of(load_run(folder))
    except ConfigError:
        return None
    return SnapshotClient(where) if where.folder == folder else None  # a moved folder has no living run
