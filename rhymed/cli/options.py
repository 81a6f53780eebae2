"""Arguments that several commands share: which configuration, with which changes."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rhymed.config import Config

LATEST = Path("runs/latest")
"""`rhymed run` leaves this link to its newest run's folder, so that other commands need no argument."""


def example(*lines: str) -> dict[str, Any]:
    """Arguments for `add_parser`: examples at the end of the help text."""
    head = "example:" if len(lines) == 1 else "examples:"
    return {
        "epilog": "\n  ".join((head, *lines)),
        "formatter_class": argparse.RawDescriptionHelpFormatter,
    }


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


def read_config(arguments: argparse.Namespace) -> Config:
    """The configuration that the arguments name. Raises `ConfigError`."""
    from rhymed.errors import ConfigError
    from rhymed.load import load_config

    path = arguments.config
    if path is None:
        path = LATEST / "config.json"
        if not path.exists():
            raise ConfigError(f"no CONFIG given, and there is no {path}; name a TOML file")
    return load_config(path, arguments.override)
