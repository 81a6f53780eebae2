"""`rhymed store`: runs the history store of a run."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from rhymed.cli.options import add_config, add_examples, make_parser, read_config


def add(commands: Any) -> None:
    parser = make_parser(commands, "store", "serve the history store of a run", handle)
    add_examples(parser, "rhymed store configs/quickstart.toml")
    add_config(parser)


def handle(arguments: argparse.Namespace) -> NoReturn:
    config = read_config(arguments)
    from rhymed.run.layout import layout_of
    from rhymed.service.process import serve
    from rhymed_store.service import StoreService

    where = layout_of(config)
    serve(lambda: StoreService(config.store, where), log_file=where.log("store"), level=config.run.log_level)
