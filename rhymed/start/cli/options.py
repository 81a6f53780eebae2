"""Arguments that several commands share: the configuration with its changes, and the run."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rhymed.core.errors import ConfigError
from rhymed.core.output import show_json

if TYPE_CHECKING:
    from rhymed.core.config import Config

Handler = Callable[[argparse.Namespace], int | None]
LATEST = Path("runs/latest")
"""A link to the newest run's folder, so that other commands need no argument."""


def make_parser(commands: Any, name: str, about: str, handler: Handler | None = None) -> argparse.ArgumentParser:
    """A subcommand whose description is its help text as a sentence; without a handler it is a group."""
    description = textwrap.fill(f"{about[0].upper()}{about[1:]}.", 80)
    parser: argparse.ArgumentParser = commands.add_parser(name, help=about, description=description)
    if handler is not None:
        parser.set_defaults(handler=handler)
    return parser


def add_examples(parser: argparse.ArgumentParser, *lines: str) -> None:
    """Examples at the end of the help text."""
    parser.epilog = "\n  ".join(("example:" if len(lines) == 1 else "examples:", *lines))
    parser.formatter_class = argparse.RawDescriptionHelpFormatter


def path_or_url(text: str) -> Path | str:
    """A type of arguments: text with `://` stays as it is."""
    return text if "://" in text else Path(text)


def add_take_over(parser: argparse.ArgumentParser, about: str) -> None:
    parser.add_argument("--take-over", action="store_true", help=about)


def count(text: str) -> int:
    """A type of arguments: a whole number from 1 on."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number from 1 on is needed")
    return int(text)


def add_run(parser: argparse.ArgumentParser, *, positional: bool = True) -> None:
    """A run's folder as `arguments.run`: RUN, or --run FOLDER of commands that take other words."""
    name: dict[str, Any] = {"nargs": "?", "metavar": "RUN"} if positional else {"metavar": "FOLDER"}
    about = f"a run's folder (default: {LATEST})"
    parser.add_argument("run" if positional else "--run", type=Path, default=LATEST, help=about, **name)


def add_where(parser: argparse.ArgumentParser, *, positional: bool = True) -> None:
    """The run, by its folder or its broker's address, and the keys to reach it."""
    add_run(parser, positional=positional)
    parser.add_argument("--broker", metavar="ADDRESS", help="instead of the folder, e.g. tcp://127.0.0.1:5555")
    parser.add_argument("--keys", type=Path, metavar="FOLDER", help="with --broker: the run's keys (`rhymed keygen`)")
    parser.add_argument("--insecure", action="store_true", help="with --broker: an open address without keys")


def add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "config",
        nargs="?",
        type=Path,
        metavar="CONFIG",
        help=f"TOML file, or a run's config.json (default: that of {LATEST})",
    )
    add_override(parser)


def add_override(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o",
        "--override",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a setting, e.g. -o trainer.lr=2e-6; repeatable",
    )
    parser.add_argument(
        "--insecure",
        action="append_const",
        dest="override",
        const="net.insecure=true",
        help="allow addresses that are open to the network without keys (-o net.insecure=true)",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")


def print_json(value: Any) -> None:
    show_json(json.dumps(value, indent=1, ensure_ascii=False))


def read_config(arguments: argparse.Namespace) -> Config:
    """The configuration that the arguments select. Raises `ConfigError`."""
    from rhymed.core.config.load import load_config

    path = arguments.config
    if path is None:
        path = LATEST / "config.json"
        if not path.exists():
            raise ConfigError(f"no CONFIG given, and there is no {path}; name a TOML file")
    return load_config(path, arguments.override)
