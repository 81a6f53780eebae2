"""`rhymed worker --role ROLE`: adds a worker to a run; workers may join and leave at any time."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from rhymed.cli.options import add_config, add_examples, make_parser, read_config
from rhymed.errors import ConfigError

if TYPE_CHECKING:
    from rhymed.config import Config
    from rhymed.run.layout import RunLayout
    from rhymed.service.service import Service


def add(commands: Any) -> None:
    parser = make_parser(
        commands, "worker", "join a run as a rollout, environment or reward worker, or as its trainer", handle
    )
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


def handle(arguments: argparse.Namespace) -> NoReturn:
    config = read_config(arguments)
    import os
    import socket

    from rhymed.messages.names import default_name, wrong_name
    from rhymed.run.layout import layout_of
    from rhymed.service.process import serve

    where = layout_of(config)
    name = arguments.name or default_name(arguments.role, socket.gethostname(), os.getpid())
    if wrong := wrong_name(arguments.role, name):
        raise ConfigError(f"--name: {wrong}")
    build = _builder(arguments.role, config, where, name, arguments.node)
    serve(build, log_file=where.log(name), level=config.run.log_level)


def _builder(role: str, config: Config, where: RunLayout, name: str, node: int = 0) -> Callable[[], Service]:
    if node and role != "trainer":
        raise ConfigError(f"--node {node} is for --role trainer: leave it out")
    if role == "rollout":
        from rhymed_workers.rollout.worker import RolloutWorker

        return lambda: RolloutWorker(config, where, name)
    if role == "environment":
        from rhymed_workers.environment.worker import EnvironmentWorker

        if not config.environment.active:
            raise ConfigError("the run has no environment: set environment.tools, factory, url or command")
        return lambda: EnvironmentWorker(config, where, name)
    if role == "reward":
        from rhymed_workers.reward.worker import RewardWorker

        return lambda: RewardWorker(config, where, name)
    if node:
        from rhymed_workers.trainer.gang.node import TrainerNode

        ranks = TrainerNode(config, node, name)
        return lambda: ranks
    from rhymed_workers.trainer.service import TrainerService

    return lambda: TrainerService(config, where, name)
