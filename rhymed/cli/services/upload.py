"""`rhymed upload`: keeps a run's copy on shared storage."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rhymed.cli.options import add_config, add_examples, add_take_over, make_parser, read_config
from rhymed.output import show


def add(commands: Any) -> None:
    parser = make_parser(
        commands, "upload", "keep checkpoints and backups of a run in run.remote; `rhymed run` starts it", handle
    )
    add_examples(parser, "rhymed upload configs/mine.toml", "rhymed upload --once runs/mine/config.json")
    add_config(parser)
    add_take_over(
        parser, "another machine had the run and is gone: wait until that is certain; refused while that one is alive"
    )
    parser.add_argument(
        "--stay",
        action="store_true",
        help="at the end of the run: write what is new, give the run back, and wait for it to be continued",
    )
    parser.add_argument(
        "--once",
        action="store_true",
        help="of a run that has ended: write what is new, give the run back to other machines, and end",
    )


def handle(arguments: argparse.Namespace) -> int:
    path: Path | None = arguments.config
    if path is not None and (path / "config.json").is_file():
        arguments.config = path / "config.json"
    config = read_config(arguments)
    from rhymed.errors import ConfigError
    from rhymed.remote.uploader import Uploader, finish
    from rhymed.run.layout import layout_of
    from rhymed.service.process import serve

    where = layout_of(config)
    if not config.run.remote:
        raise ConfigError("run.remote is empty: name a folder of shared storage, e.g. -o run.remote=s3://bucket/runs")
    take_over, stays = arguments.take_over, arguments.stay
    if not arguments.once:
        serve(
            lambda: Uploader(config, where, take_over=take_over, stays=stays),
            log_file=where.log("uploader"),
            level=config.run.log_level,
        )
    if take_over:
        from rhymed.remote import head

        head.claim(config, where, take_over=True)
    if not where.config.exists():
        raise ConfigError(f"{where.folder} is no run's folder: name one that has ended")
    show(finish(config, where))
    return 0
