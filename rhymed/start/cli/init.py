"""`rhymed init`: writes a folder to start from, and lists what the package contains."""

from __future__ import annotations

import argparse
from pathlib import Path

from rhymed.core.errors import ConfigError
from rhymed.core.output import show
from rhymed.start.cli.options import add_examples

COLUMN = 14  # of a name in the list


def add(parser: argparse.ArgumentParser) -> None:
    from rhymed.start.starters import DEFAULT, configurations, tasks

    parser.set_defaults(handler=handle)
    add_examples(
        parser,
        "rhymed init mine",
        "rhymed init words --task gsm8k",
        "rhymed init gpu --config gpu/1x24gb",
        "rhymed init --list",
    )
    parser.add_argument("folder", nargs="?", type=Path, metavar="FOLDER", help="created if it does not exist")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--task", choices=list(tasks()), help=f"which example (default: {DEFAULT})")
    what.add_argument(
        "--config",
        choices=configurations(),
        metavar="NAME",
        help="only this configuration, e.g. quickstart; see --list",
    )
    what.add_argument("--list", action="store_true", help="list tasks and configurations")
    what.add_argument(
        "--constraints", choices=("cpu", "cuda"), help="print the file of tested versions, for `pip install -c`"
    )
    parser.add_argument("--force", action="store_true", help="overwrite files that exist")


def handle(arguments: argparse.Namespace) -> int:
    from rhymed.start import starters
    from rhymed.start.starters import DEFAULT

    if arguments.list or arguments.constraints:
        show(_list() if arguments.list else starters.shipped("requirements") / f"{arguments.constraints}.in")
        return 0
    if arguments.folder is None:
        raise ConfigError("name a folder to write, e.g. rhymed init mine; rhymed init --list shows what there is")
    if arguments.config is not None:
        starter = starters.config_starter(arguments.folder, arguments.config)
    else:
        starter = starters.task_starter(arguments.folder, arguments.task or DEFAULT)
    for file in starter.write(force=arguments.force):
        show(f"wrote {file}")
    show("\nnext:")
    for command in starter.commands:
        show(f"  {command}")
    return 0


def _list() -> str:
    from rhymed.start.starters import about, configurations, shipped, tasks

    lines = ["tasks (rhymed init FOLDER --task NAME)"]
    lines += (f"  {name:<{COLUMN}}{about(file)}" for name, file in tasks().items())
    lines += ["", "configurations (rhymed init FOLDER --config NAME)"]
    lines += (f"  {name:<{COLUMN}}{about(file)}" for name, file in configurations().items())
    return "\n".join([*lines, "", f"more examples are in {shipped('examples')}"])
