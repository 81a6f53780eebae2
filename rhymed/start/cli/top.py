"""`rhymed top`: a run on a live terminal."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rhymed.core.errors import ConfigError, WireError
from rhymed.start.cli.options import add_examples, add_where

if TYPE_CHECKING:
    import asyncio

    from rhymed.core.messages import Queues
    from rhymed.start.cli.steer import Where

EVERY_S = 1.0


def add(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(handler=handle)
    add_examples(parser, "rhymed top                 # q ends it; the run continues", "rhymed top runs/quickstart")
    add_where(parser)


def handle(arguments: argparse.Namespace) -> int:
    import asyncio

    from rhymed.start.cli.steer import where_of

    whole = all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
    if not whole or os.environ.get("TERM", "dumb") == "dumb":
        raise ConfigError("`rhymed top` needs a terminal; `rhymed queues` is for pipes and files")
    asyncio.run(_show(where_of(arguments, "viewer")))
    return 0


async def _show(where: Where) -> None:
    """Until the user ends it. A broker that is silent may be restarting, and one that is gone may be resumed: it is
    asked again, below its last picture."""
    import asyncio

    from rich.console import Group
    from rich.live import Live

    from rhymed.core.console import Terminal
    from rhymed.core.run.client import ask, ask_or_explain
    from rhymed.core.run.folder import layout_of_folder, read_metrics
    from rhymed.core.run.timeline import Progress
    from rhymed.core.wire.addresses import is_removed
    from rhymed.core.wire.sockets import Client
    from rhymed.show.top.screen import picture
    from rhymed.show.top.state import Shown

    client, console = Client(where.address, peer="broker", keys=where.keys), Terminal()
    shown, progress = Shown(), Progress()

    async def answered(queues: Queues) -> None:
        times = None
        if where.folder is not None:
            await asyncio.to_thread(progress.read, where.folder)
            times = progress.times(queues.steps, time.time())
        shown.answered(queues, time.monotonic(), times)

    async def look() -> None:
        try:
            queues = None if is_removed(client.address) else await ask(client)
        except WireError:
            queues = None
        if queues is None:
            shown.unanswered(time.monotonic(), ended=is_removed(client.address))
        else:
            await answered(queues)

    try:
        if where.folder is not None:
            shown.history.add_steps(read_metrics(layout_of_folder(where.folder)))
        await answered(await ask_or_explain(client))
        with Live(console=console, screen=True, auto_refresh=False) as screen, _ended_by_user() as over:
            while not over.is_set():
                screen.update(Group(*picture(shown, console.width, console.height, time.monotonic())), refresh=True)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(over.wait(), EVERY_S)
                await look()
    finally:
        client.close()


@contextlib.contextmanager
def _ended_by_user() -> Iterator[asyncio.Event]:
    """Set at `q`, Ctrl-C, or a signal. Keys are read without an Enter meanwhile."""
    import asyncio
    import termios
    import tty

    loop, over, keys = asyncio.get_running_loop(), asyncio.Event(), sys.stdin.fileno()
    before = termios.tcgetattr(keys)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, over.set)
    loop.add_reader(keys, lambda: over.set() if b"q" in os.read(keys, 64) else None)
    tty.setcbreak(keys)
    try:
        yield over
    finally:
        loop.remove_reader(keys)
        termios.tcsetattr(keys, termios.TCSADRAIN, before)
