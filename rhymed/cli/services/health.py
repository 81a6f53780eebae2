"""`rhymed health ROLE`: is a process of a run on this host healthy? For container engines and scripts.

Uses the role's own key, so a container needs no other. A server is healthy if it answers. A worker is healthy if the
broker has recently received a heartbeat from a worker of its role on this host.
"""

from __future__ import annotations

import argparse
import contextlib
from typing import TYPE_CHECKING, Any

from rhymed.cli.options import add_config, add_examples, make_parser, read_config
from rhymed.output import show

if TYPE_CHECKING:
    from rhymed.messages import Message
    from rhymed.run.layout import RunLayout

SERVERS = ("broker", "store")
WORKERS = ("rollout", "environment", "reward", "trainer")
DEADLINE_S = 5.0


def add(commands: Any) -> None:
    parser = make_parser(
        commands, "health", "exit status 0 if this host's broker, store or worker is healthy, else 1", handle
    )
    add_examples(parser, "rhymed health broker configs/quickstart.toml")
    parser.add_argument("role", choices=[*SERVERS, *WORKERS], metavar="ROLE", help=", ".join((*SERVERS, *WORKERS)))
    add_config(parser)


def handle(arguments: argparse.Namespace) -> int:
    config = read_config(arguments)
    import asyncio
    import socket

    from rhymed.errors import RhymedError
    from rhymed.run.layout import layout_of

    try:
        answer = asyncio.run(_ask(layout_of(config), arguments.role))
    except RhymedError as error:
        show(f"{arguments.role}: {error}")
        return 1
    if arguments.role in SERVERS:
        show(f"{arguments.role}: answers")
        return 0
    healthy, text = judge(answer, arguments.role, socket.gethostname(), config.schedule.lost_after_s)
    show(text)
    return 0 if healthy else 1


def judge(queues: Any, role: str, host: str, lost_after_s: float) -> tuple[bool, str]:
    """Pure: is a worker of that role on that host alive? With an explanation."""
    here = [row for row in queues.workers if row.role == role and row.host == host]
    heard = [row for row in here if row.silent_s < lost_after_s]
    if heard:
        return True, "\n".join(f"{row.worker}: {row.phase or 'idle'}, {row.silent_s:.1f} s ago" for row in heard)
    if here:
        return False, f"{here[0].worker} has been silent for {here[0].silent_s:.0f} s"
    return False, f"no {role} worker of {host} has joined the run: it is still starting, or see its log"


async def _ask(where: RunLayout, role: Any) -> Message:
    from rhymed.run.client import ask
    from rhymed.wire.sockets import Client
    from rhymed_store.shards.client import connect

    if role == "store":
        with contextlib.closing(connect(where, "health", where.keys(role))) as store:
            return await store.stats(deadline_s=DEADLINE_S)
    client = Client(where.broker, peer="broker", keys=where.keys(role).to("broker"))
    try:
        return await ask(client, deadline_s=DEADLINE_S)
    finally:
        client.close()
