"""`rhymed queues`: the broker's queues, and what each worker holds."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from rhymed.core.output import show_json
from rhymed.start.cli.options import add_examples, add_where

if TYPE_CHECKING:
    from rhymed.start.cli.steer import Where


def add(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(handler=handle)
    add_examples(parser, "rhymed queues", "rhymed queues runs/quickstart --json")
    parser.add_argument("--json", action="store_true", help="the raw snapshot as JSON")
    add_where(parser)


def handle(arguments: argparse.Namespace) -> int:
    import asyncio

    from rhymed.start.cli.steer import where_of

    asyncio.run(_show(where_of(arguments, "viewer"), raw=arguments.json))
    return 0


async def _show(where: Where, *, raw: bool) -> None:
    import msgspec

    from rhymed.core.console import Terminal
    from rhymed.core.run.client import ask_or_explain
    from rhymed.core.run.timeline import Progress
    from rhymed.core.wire.sockets import Client
    from rhymed.show.top.plain import render

    client, console = Client(where.address, peer="broker", keys=where.keys), Terminal()
    try:
        snapshot = await ask_or_explain(client)
    finally:
        client.close()
    if raw:
        show_json(msgspec.json.encode(snapshot).decode())
        return
    times = None
    if where.folder is not None:
        progress = Progress()
        progress.read(where.folder)
        times = progress.times(None if snapshot.paused else snapshot.steps, time.time())
    console.print(render(snapshot, console.width, times))
