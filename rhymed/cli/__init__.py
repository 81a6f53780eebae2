"""The `rhymed` command. One file per command; heavy imports happen after the arguments are parsed."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from rhymed import __version__
from rhymed.cli.options import add_examples, meant_run

EXIT_MISTAKE = 2  # the user has to change something
EXIT_FAILURE = 1
EXIT_INTERRUPTED = 130  # as shells do for SIGINT
EXIT_PIPE = 141  # as shells do for SIGPIPE


MEANT = {
    "benchmark": "bench",
    "continue": "run --resume",
    "convert": "migrate-config",
    "create": "init",
    "dashboard": "view",
    "evaluate": "eval",
    "export": "checkpoint export",
    "migrate": "migrate-config",
    "new": "init",
    "resume": "run --resume",
    "samples": "history show",
    "serve": "view",
    "simulate": "sim",
    "start": "run",
    "status": "queues",
    "train": "run",
    "validate": "check",
}
"""Words of other programs -> the command here."""

ALIKE = 0.75  # of the letters; "chek" is like "check", "bogus" is not like "logs"


class Parser(argparse.ArgumentParser):
    """Reports a mistake in one line, with a suggestion."""

    def error(self, message: str) -> NoReturn:
        chosen = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        guess = _suggestion(chosen[1], re.findall(r"[\w-]+", chosen[2])) if chosen else ""
        self.exit(EXIT_MISTAKE, f"{self.prog}: {message}{guess} (see {self.prog} --help)\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Suggests --run if an unknown word is a run's folder."""
        known, rest = super().parse_known_args(args, namespace)
        if hasattr(known, "run") and (guess := meant_run(rest)):
            self.error(f"unrecognized arguments: {' '.join(rest)}{guess}")
        return known, rest


def _suggestion(word: str, choices: Sequence[str]) -> str:
    """What the word may mean: a choice that it begins or is like, or another program's word for it."""
    longer = [choice for choice in choices if len(word) > 1 and choice.startswith(word)]
    close = longer or difflib.get_close_matches(word, choices, n=1, cutoff=ALIKE)
    meant = close[0] if close else MEANT.get(word, "")
    return f"; did you mean {meant}?" if meant.partition(" ")[0] in choices else ""


def parser() -> argparse.ArgumentParser:
    from rhymed.cli import bench, check, checkpoint, eval, history, model, prepare, report, run, sim
    from rhymed.cli.live import dashboard, logs, queues, steer
    from rhymed.cli.live import top as live_top
    from rhymed.cli.services import broker, health, keygen, store, worker
    from rhymed.cli.setup import completion, init, migrate
    from rhymed.cli.several import runs, sweep

    top = Parser(
        prog="rhymed",
        description="Reinforcement learning of language models with rollouts that are drafted from history.",
    )
    add_examples(top, "rhymed init mine", "rhymed check mine/config.toml", "rhymed run mine/config.toml")
    top.add_argument("--version", action="version", version=f"rhymed {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    training = (init, migrate, check, run, sweep, eval)
    shown = (*training, runs, live_top, queues, steer, dashboard, logs, report, history, checkpoint)
    services = (worker, broker, store, health, keygen, prepare, model)
    for module in (*shown, *services, bench, sim, completion):
        module.add(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. A user's mistake ends in one clear line and status 2, without a traceback. No words: the help."""
    if not (sys.argv[1:] if argv is None else argv):
        argv = ["--help"]
    try:
        status = _call(argv)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader has ended, e.g. `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # as rich has it
            return EXIT_PIPE
        raise


def _call(argv: Sequence[str] | None) -> int:
    arguments = parser().parse_args(argv)
    from rhymed.errors import HOPELESS, RhymedError
    from rhymed.unloadable import hide_unloadable

    hide_unloadable()
    handler: Any = arguments.handler
    try:
        return int(handler(arguments) or 0)
    except HOPELESS as error:
        print("\n".join(f"rhymed: {line}" for line in str(error).splitlines()), file=sys.stderr)
        return EXIT_MISTAKE
    except RhymedError as error:
        print(f"rhymed: {type(error).__name__}: {error}", file=sys.stderr)
        return EXIT_FAILURE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
