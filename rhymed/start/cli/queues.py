"""`rhymed queues`: the broker's queues, and what each worker holds."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from rhymed.core.output import show_json
from rhymed.start.cli.options import add_examples, add_where

if TYPE_CHECKING:
    from rich.text import Text

    from rhymed.core.messages import Queues
    from rhymed.start.cli.steer import Where


def add(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(handler=handle)
    add_examples(parser, "rhymed queues --watch", "rhymed queues runs/quickstart --json")
    parser.add_argument("--watch", action="store_true", help="refresh every second until the run ends")
    parser.add_argument("--json", action="store_true", help="the raw snapshot as JSON (with --watch: one per line)")
    add_where(parser)


def handle(arguments: argparse.Namespace) -> int:
    import asyncio

    from rhymed.start.cli.steer import where_of

    where = where_of(arguments, "viewer")
    return asyncio.run(_show(where, watch=arguments.watch, raw=arguments.json))


async def _show(where: Where, *, watch: bool, raw: bool) -> int:
    import msgspec
    from rich.live import Live

    from rhymed.core.console import Terminal
    from rhymed.core.run.client import follow
    from rhymed.core.run.timeline import Progress
    from rhymed.core.wire.sockets import Client
    from rhymed.show.top.plain import render
    from rhymed.show.top.state import History

    client, console = Client(where.address, peer="broker", keys=where.keys), Terminal()
    progress, history = Progress(), History()

    def rendered(snapshot: Queues) -> Text:
        times = None
        if where.folder is not None:
            progress.read(where.folder)
            times = progress.times(None if snapshot.paused else snapshot.steps, time.time())
        history.add(snapshot)
        return render(snapshot, console.width, times, history)

    try:
        snapshots = follow(client, once=not watch)
        if raw:
            async for snapshot in snapshots:
                show_json(msgspec.json.encode(snapshot).decode(), flush=True)
        elif watch and console.is_terminal:
            with Live(console=console, auto_refresh=False) as screen:
                async for snapshot in snapshots:
                    screen.update(rendered(snapshot), refresh=True)
        else:  # into a pipe or file: `Live` would print only the last one
            async for snapshot in snapshots:
                console.print(rendered(snapshot))
                console.file.flush()
        return 0
    finally:
        client.close()
