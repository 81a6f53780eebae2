"""`rhymed keygen FOLDER`: creates, rotates and retires the keys of a run. Secrets are never printed."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from rhymed.core.errors import ConfigError
from rhymed.core.output import show
from rhymed.core.text import quoted
from rhymed.start.cli.options import add_examples

if TYPE_CHECKING:
    from collections.abc import Iterable

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
    add_examples(
        parser,
        "rhymed keygen keys                    # then: rhymed run my.toml -o net.keys=keys",
        "rhymed keygen keys --rotate rollout   # a new pair; the old one stays valid ...",
        "rhymed keygen keys --retire rollout   # ... until this",
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="folder of the keys")
    for option, about in {
        "--role": "only this role (default: all missing ones)",
        "--rotate": "replace the existing secret by a new pair",
        "--retire": "make all but the role's newest key invalid",
    }.items():
        parser.add_argument(option, action="append", default=[], choices=list(WHERE), help=about)


def handle(arguments: argparse.Namespace) -> int:
    from rhymed.core.wire.keys import make_keys, retire

    folder: Path = arguments.folder
    try:
        missing: Iterable[KeyRole] = () if arguments.rotate or arguments.retire else WHERE
        made = make_keys(folder, arguments.role or missing, arguments.rotate)
        retired = retire(folder, arguments.retire) if arguments.retire else 0
    except OSError as error:
        raise ConfigError(f"{error.filename or folder}: {error.strerror}") from None
    show("\n".join(_report(folder, made, arguments.rotate, arguments.retire, retired)))
    return 0


def _report(folder: Path, made: list[KeyRole], rotated: list[str], retiring: list[str], retired: int) -> list[str]:
    lines = [f"made     {role:<11} {folder / (role + '.secret')}  ->  {WHERE[role]}" for role in made]
    if made or retired:
        lines.append(f"         public   {folder / 'public'}  ->  every machine of the run")
    if retiring:
        lines.append(f"retired  {retired} old keys of {', '.join(retiring)}: refused within a second of the copy")
    if not made and not retiring:
        lines.append(f"nothing to do: {folder} has these keys; --rotate ROLE makes a new pair")
    if rotated:
        retire = " ".join(f"--retire {role}" for role in rotated)
        lines += [
            "next     1. copy public everywhere: running processes read it within a second",
            f"         2. copy the secret of {', '.join(rotated)}, and restart those processes one by one",
            f"         3. rhymed keygen {quoted(folder)} {retire}, and copy public",
        ]
    elif made:
        lines.append(f"next     net.keys = '{folder}' in the configuration; secrets are readable by you only")
    return lines
