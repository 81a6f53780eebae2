"""The `rhymed` command. One file a command; each imports what is heavy only after the arguments are parsed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from rhymed import __version__


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    from rhymed.cli import bench, broker, model, queues, run, store, worker

    top = argparse.ArgumentParser(
        prog="rhymed", description="Reinforcement learning whose rollouts rhyme with history."
    )
    top.add_argument("--version", action="version", version=f"rhymed {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in (run, queues, worker, broker, store, model, bench):
        module.add(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; a user's mistake ends in one clear line and status 2, not in a traceback."""
    arguments = parser().parse_args(argv)
    from rhymed.errors import ConfigError, DataError, RhymedError

    handler: Any = arguments.handler
    try:
        return int(handler(arguments) or 0)
    except (ConfigError, DataError) as error:
        print(f"rhymed: {error}", file=sys.stderr)
        return 2
    except RhymedError as error:
        print(f"rhymed: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
