"""The processes of a run, one a command: `rhymed worker`, which may join and leave at any time, `broker`, `store` and
`upload`; and `rhymed health`, which asks whether one is well."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from rhymed.core.errors import ConfigError, RhymedError, RunMismatch
from rhymed.core.output import show
from rhymed.start.cli.options import add_config, add_examples, add_take_over, read_config

if TYPE_CHECKING:
    from rhymed.core.config import Config
    from rhymed.core.messages import Message
    from rhymed.core.run.layout import RunLayout
    from rhymed.core.service.service import Service


def add_worker(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(handler=handle_worker)
    add_examples(parser, "rhymed worker --role rollout configs/quickstart.toml")
    parser.add_argument("--role", required=True, choices=["rollout", "environment", "reward", "trainer"])
    parser.add_argument(
        "--node", type=int, default=0, metavar="N", help="trainer: this machine's number, below trainer.nodes"
    )
    parser.add_argument(
        "--name",
        default="",
        help="unique, begins with its role (default: role, host and process id)",
    )
    add_config(parser)


def handle_worker(arguments: argparse.Namespace) -> NoReturn:
    config = read_config(arguments)
    import socket

    from rhymed.core.messages.names import default_name, wrong_name
    from rhymed.core.run.layout import layout_of

    where = layout_of(config)
    name = arguments.name or default_name(arguments.role, socket.gethostname(), os.getpid())
    if wrong := wrong_name(arguments.role, name):
        raise ConfigError(f"--name: {wrong}")
    build = _builder(arguments.role, config, where, name, arguments.node)
    _serve(build, config, where, name, _template(arguments.role, config, where))


def _serve(
    build: Callable[[], Service], config: Config, where: RunLayout, name: str, check: Callable[[], None] | None = None
) -> NoReturn:
    from rhymed.core.service.process import serve

    serve(build, log_file=where.log(name), level=config.run.log_level, check=check)


def _template(role: str, config: Config, where: RunLayout) -> Callable[[], None] | None:
    """Raises `RunMismatch` if the chat template, which the process reads, was edited. None: it reads none."""
    from rhymed.core.run import edited
    from rhymed.core.run.provenance import TEMPLATE

    def check() -> None:
        edited.compare(where.folder, config, TEMPLATE, RunMismatch)

    reads = role in ("rollout", "environment") or (role == "trainer" and config.trainer.teacher.used)
    return check if reads and config.model.chat_template else None


def _builder(role: str, config: Config, where: RunLayout, name: str, node: int = 0) -> Callable[[], Service]:
    if node and role != "trainer":
        raise ConfigError(f"--node {node} is for --role trainer: leave it out")
    if role == "rollout":
        from rhymed_workers.rollout.worker import RolloutWorker

        return lambda: RolloutWorker(config, where, name)
    if role == "environment":
        from rhymed_workers.environment.worker import EnvironmentWorker

        if not config.environment.active:
            raise ConfigError("the run has no environment: set environment.tools, mcp, factory, url or command")
        return lambda: EnvironmentWorker(config, where, name)
    if role == "reward":
        from rhymed_workers.reward.worker import RewardWorker

        return lambda: RewardWorker(config, where, name)
    if node:
        from rhymed_workers.trainer.distributed.node import TrainerNode

        ranks = TrainerNode(config, node, name)
        return lambda: ranks
    from rhymed_workers.trainer.service import TrainerService

    return lambda: TrainerService(config, where, name)


# `rhymed broker`: runs the control plane of a run.


def add_broker(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(handler=handle_broker)
    add_examples(parser, "rhymed broker configs/quickstart.toml")
    parser.add_argument(
        "--stay",
        action="store_true",
        help="keep answering after the end, so that late workers learn that the run has ended",
    )
    add_config(parser)


def handle_broker(arguments: argparse.Namespace) -> NoReturn:
    config = read_config(arguments)
    from rhymed.core.run import folder
    from rhymed.core.run.layout import layout_of
    from rhymed_broker.service import BrokerService

    where = layout_of(config)
    if not where.config.exists():  # written here if no other process has, so that other commands find the run
        folder.save(config)
    _serve(lambda: BrokerService(config, where, stays=arguments.stay), config, where, "broker")


# `rhymed store`: runs the history store of a run.


def add_store(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(handler=handle_store)
    add_examples(parser, "rhymed store configs/quickstart.toml")
    add_config(parser)


def handle_store(arguments: argparse.Namespace) -> NoReturn:
    config = read_config(arguments)
    from rhymed.core.run.layout import layout_of
    from rhymed_store.service import StoreService

    where = layout_of(config)
    _serve(lambda: StoreService(config.store, where), config, where, "store")


# `rhymed upload`: keeps a run's copy on shared storage.


def add_upload(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(handler=handle_upload)
    add_examples(
        parser, "rhymed upload configs/mine.toml", "rhymed upload --once runs/mine -o run.remote=s3://bucket/copies"
    )
    add_config(parser)
    add_take_over(
        parser, "another machine had the run and is gone: wait until that is certain; refused while that one is alive"
    )
    parser.add_argument(
        "--once",
        action="store_true",
        help="write what is new, give the run back to other machines, and end: for a run that has ended, or by hand",
    )


def handle_upload(arguments: argparse.Namespace) -> int:
    path: Path | None = arguments.config
    if path is not None and (path / "config.json").is_file():
        arguments.config = path / "config.json"
    config = read_config(arguments)
    from rhymed.core.run.layout import layout_of
    from rhymed.records.remote.uploader import Uploader, finish

    where = layout_of(config)
    if not config.run.remote:
        raise ConfigError("run.remote is empty: name a folder of shared storage, e.g. -o run.remote=s3://bucket/runs")
    take_over = arguments.take_over
    if not arguments.once:
        _serve(lambda: Uploader(config, where, take_over=take_over), config, where, "uploader")
    if not where.config.exists():
        raise ConfigError(f"{where.folder} is no run's folder: name one that has ended")
    from rhymed.core.config.load import load_run
    from rhymed.core.run import state
    from rhymed.records.remote import head

    alive = state.state_of(where.folder) == "running" and not (where.folder / state.END).exists()
    if alive and load_run(where.folder).run.remote == config.run.remote:
        raise ConfigError(
            f"{where.folder} is a living run, whose uploader writes there: wait for its end, or copy it"
            " to another place by -o run.remote=URL"
        )
    head.claim(config, where, take_over=take_over)
    show(finish(config, where))
    return 0


# `rhymed health ROLE`: is a process of a run on this host healthy? For container engines and scripts.
#
# Uses the role's own key, so a container needs no other. A server is healthy if it answers. A worker is healthy if
# the broker has recently received a heartbeat from a worker of its role on this host.

SERVERS = ("broker", "store")
WORKERS = ("rollout", "environment", "reward", "trainer")
DEADLINE_S = 5.0


def add_health(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(handler=handle_health)
    add_examples(parser, "rhymed health broker configs/quickstart.toml")
    parser.add_argument("role", choices=[*SERVERS, *WORKERS], metavar="ROLE", help=", ".join((*SERVERS, *WORKERS)))
    add_config(parser)


def handle_health(arguments: argparse.Namespace) -> int:
    config = read_config(arguments)
    import asyncio
    import socket

    from rhymed.core.run.layout import layout_of

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
    from rhymed.core.run.client import ask
    from rhymed.core.wire.sockets import Client
    from rhymed_store.client import connect

    if role == "store":
        with contextlib.closing(connect(where, "health", where.keys(role))) as store:
            return await store.stats(deadline_s=DEADLINE_S)
    client = Client(where.broker, peer="broker", keys=where.keys(role).to("broker"))
    try:
        return await ask(client, deadline_s=DEADLINE_S)
    finally:
        client.close()
