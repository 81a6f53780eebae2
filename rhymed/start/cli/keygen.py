"""`rhymed keygen FOLDER`: creates the keys of a run. Secrets are never printed."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from rhymed.core.errors import ConfigError
from rhymed.core.output import show
from rhymed.start.cli.options import add_examples

if TYPE_CHECKING:
    from rhymed.core.wire.keys import KeyRole

WHERE: dict[KeyRole, str] = {
    "broker": "where `rhymed broker` runs, or `rhymed run`",
    "store": "where `rhymed store` runs, or `rhymed run`",
    "trainer": "where the trainer runs, or `rhymed run`",
    "rollout": "every machine with rollout workers",
    "environment": "every machine with environment workers",
    "reward": "every machine with reward workers",
    "viewer": "for watching: `rhymed queues`, `rhymed top`, and the screen of `rhymed run`",
    "operator": "for steering: `rhymed steer`",
}


def add(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(handler=handle)
    add_examples(parser, "rhymed keygen keys   # then: rhymed run my.toml -o net.keys=keys")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="folder of the keys")
    parser.add_argument(
        "--role", action="append", default=[], choices=list(WHERE), help="only this role (default: all missing ones)"
    )


def handle(arguments: argparse.Namespace) -> int:
    from rhymed.core.wire.keys import make_keys

    folder: Path = arguments.folder
    try:
        made = make_keys(folder, arguments.role or WHERE)
    except OSError as error:
        raise ConfigError(f"{error.filename or folder}: {error.strerror}") from None
    if not made:
        show(f"nothing to do: {folder} has these keys; for other ones name another folder")
        return 0
    for role in made:
        show(f"made     {role:<11} {folder / (role + '.secret')}  ->  {WHERE[role]}")
    show(f"         public   {folder / 'public'}  ->  every machine of the run")
    show(f"next     net.keys = '{folder}' in the configuration; secrets are readable by you only")
    return 0
