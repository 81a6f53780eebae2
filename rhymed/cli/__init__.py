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
from rhymed.output import show

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
        """Unknown words are an error of the command that they were given to, whose help has the known ones."""
        known, rest = super().parse_known_args(args, namespace)
        if rest:
            guess = meant_run(rest) if hasattr(known, "run") else ""
            options = [option for option in self._option_string_actions if option.startswith("--")]
            guess = guess or _suggestion(rest[0].partition("=")[0], options)
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
    from rhymed.cli.live import dashboard, logs, queues, scale, steer
    from rhymed.cli.live import top as live_top
    from rhymed.cli.services import broker, health, keygen, store, upload, worker
    from rhymed.cli.setup import completion, drafter, init, launch, migrate
    from rhymed.cli.several import runs, sweep

    top = Parser(
        prog="rhymed",
        description="Reinforcement learning of language models with rollouts that are drafted from history.",
    )
    add_examples(top, "rhymed init mine", "rhymed check mine/config.toml", "rhymed run mine/config.toml")
    top.add_argument("--version", action="version", version=f"rhymed {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    training = (init, migrate, check, run, launch, sweep, eval)
    shown = (*training, runs, live_top, queues, steer, scale, dashboard, logs, report, history, checkpoint, drafter)
    services = (worker, broker, store, upload, health, keygen, prepare, model)
    for module in (*shown, *services, bench, sim, completion):
        module.add(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. A user's mistake ends in one clear line and status 2, without a traceback. No words: the help."""
    if argv is None:
        _speak_utf8()
    _open_streams()
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


def _speak_utf8() -> None:
    """Begins again in Python's UTF-8 mode where the locale has another encoding, so that files are UTF-8 everywhere.
    The terminal gets what it can show."""
    import locale

    settled = sys.flags.utf8_mode or sys.flags.ignore_environment or os.environ.get("PYTHONUTF8") == "1"
    if settled or locale.getencoding().lower().replace("-", "") == "utf8":
        return
    shown = sys.stdout.encoding if sys.stdout else "ascii"
    environ = {**os.environ, "PYTHONUTF8": "1", "PYTHONIOENCODING": f"{shown}:replace"}
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environ)


def _open_streams() -> None:
    """Standard streams that were closed (`>&-`) lead nowhere: otherwise the next file would take their numbers. What
    a terminal cannot show is replaced."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115
        elif mode == "w" and getattr(stream, "errors", "") == "strict" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _call(argv: Sequence[str] | None) -> int:
    arguments = parser().parse_args(argv)
    from rhymed.errors import HOPELESS, RhymedError
    from rhymed.printable import visible
    from rhymed.unloadable import hide_unloadable

    hide_unloadable()
    handler: Any = arguments.handler
    try:
        return int(handler(arguments) or 0)
    except HOPELESS as error:
        show("\n".join(f"rhymed: {line}" for line in visible(str(error)).splitlines()), file=sys.stderr)
        return EXIT_MISTAKE
    except RhymedError as error:
        show(f"rhymed: {type(error).__name__}: {visible(str(error))}", file=sys.stderr)
        return EXIT_FAILURE
    except BrokenPipeError:
        raise
    except OSError as error:
        import logging

        if (log := logging.getLogger(__name__)).hasHandlers():
            log.exception("refused by the system")
        show(f"rhymed: {visible(_without_traceback(error))}", file=sys.stderr)
        return EXIT_MISTAKE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _without_traceback(error: OSError) -> str:
    """What the system refused: files of others, full disks, devices."""
    try:
        os.getcwd()
    except OSError:
        return "the current folder does not exist any more: change to another one"
    names = " and ".join(str(name) for name in (error.filename, error.filename2) if name is not None)
    return f"{names or type(error).__name__}: {error.strerror or error}"
