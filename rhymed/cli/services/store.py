"""`rhymed store`: runs the history store of a run."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from rhymed.cli.options import add_config, example, read_config


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "store", help="serve the history store of a run", **example("rhymed store configs/quickstart.toml")
    )
    add_config(parser)
    parser.set_defaults(handler=handle)


def handle(arguments: argparse.Namespace) -> NoReturn:
    config = read_config(arguments)
    from rhymed.run.layout import layout_of
    from rhymed.service.process import serve
    from rhymed_store.service import StoreService

    where = layout_of(config)
    serve(lambda: StoreService(config, where), log_file=where.log("store"), level=config.run.log_level)
