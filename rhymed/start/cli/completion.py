"""`rhymed completion`: the script with which a shell completes commands, options and files."""

from __future__ import annotations

import argparse

from rhymed.core.errors import ConfigError
from rhymed.core.output import show
from rhymed.start.cli.options import add_examples


def add(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(handler=handle)
    add_examples(
        parser,
        "rhymed completion bash > ~/.local/share/bash-completion/completions/rhymed",
        "rhymed completion zsh > ~/.zsh/completions/_rhymed",
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), metavar="SHELL", help="bash, zsh or fish")


def handle(arguments: argparse.Namespace) -> int:
    from rhymed.start.cli import parser

    try:
        import shtab
    except ImportError:
        raise ConfigError("shtab is not installed: pip install 'rhymed[completion]'") from None
    top = parser()
    _prepare(top)
    show(shtab.complete(top, shell=arguments.shell))
    return 0


def _prepare(parser: argparse.ArgumentParser) -> None:
    """In every command, arguments that are paths complete to files and folders."""
    from pathlib import Path

    import shtab

    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                _prepare(command)
            continue
        if isinstance(action.choices, dict):  # shtab takes a dict for commands
            action.choices = list(action.choices)
        if action.type is Path:
            action.complete = shtab.FILE  # type: ignore[attr-defined]  # what shtab reads
