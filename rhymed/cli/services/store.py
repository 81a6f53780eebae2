"""`rhymed store`: runs the history store of a run."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from rhymed.cli.options import add_config, add_examples, make_parser, read_config


def add(commands: Any) -> None:
    parser = make_parser(commands, "store", "serve the history store of a run", handle)
    add_examples(parser, "rhymed store configs/quickstart.toml")
    parser.add_argument("--shard", type=int, metavar="N", help="which of store.shards stores, from 0")
    add_config(parser)


def handle(arguments: argparse.Namespace) -> NoReturn:
    config = read_config(arguments)
    from rhymed.errors import ConfigError
    from rhymed.run.layout import layout_of, store_name
    from rhymed.service.process import serve
    from rhymed_store.service import StoreService

    shards, number = config.store.shards, arguments.shard
    if (number is None and shards > 1) or not 0 <= (number or 0) < shards:
        raise ConfigError(f"store.shards = {shards}: start each of them, rhymed store --shard 0 to {shards - 1}")
    where = layout_of(config).stores[number or 0]
    log_file = where.log(store_name(where.shard))
    serve(lambda: StoreService(config.store, where), log_file=log_file, level=config.run.log_level)
