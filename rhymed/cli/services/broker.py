"""`rhymed broker`: runs the control plane of a run."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from rhymed.cli.options import add_config, add_examples, make_parser, read_config


def add(commands: Any) -> None:
    parser = make_parser(commands, "broker", "serve the control plane of a run", handle)
    add_examples(parser, "rhymed broker configs/quickstart.toml")
    parser.add_argument(
        "--stay",
        action="store_true",
        help="keep answering after the end, so that late workers learn that the run has ended",
    )
    add_config(parser)


def handle(arguments: argparse.Namespace) -> NoReturn:
    config = read_config(arguments)
    from rhymed.run import folder
    from rhymed.run.layout import layout_of
    from rhymed.service.process import serve
    from rhymed_broker.service import BrokerService

    where = layout_of(config)
    if not where.config.exists():  # written here if no other process has, so that other commands find the run
        folder.save(config)
    stays: bool = arguments.stay
    level = config.run.log_level
    serve(lambda: BrokerService(config, where, stays=stays), log_file=where.log("broker"), level=level)
