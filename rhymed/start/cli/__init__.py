"""The `rhymed` command: a table of its commands, of which a call imports only the one that it is for."""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import re
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from rhymed import __version__
from rhymed.core.output import show
from rhymed.start.cli.options import add_examples, make_parser

EXIT_MISTAKE = 2  # the user has to change something
EXIT_FAILURE = 1
EXIT_INTERRUPTED = 130  # as shells do for SIGINT
EXIT_PIPE = 141  # as shells do for SIGPIPE
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
        if rest and (name := self._defaults.get("listed")) and not any(word.startswith("-") for word in rest):
            getattr(known, name).extend(rest)  # the rest of a list with options in its middle
            rest = []
        if rest:
            options = [option for option in self._option_string_actions if option.startswith("--")]
            guess = _suggestion(rest[0].partition("=")[0], options)
            self.error(f"unrecognized arguments: {' '.join(rest)}{guess}")
        return known, rest


def _suggestion(word: str, choices: Sequence[str]) -> str:
    """What the word may mean: a choice that it begins or is like."""
    longer = [choice for choice in choices if len(word) > 1 and choice.startswith(word)]
    close = longer or difflib.get_close_matches(word, choices, n=1, cutoff=ALIKE)
    return f"; did you mean {close[0]}?" if close else ""


class Command(NamedTuple):
    about: str  # in `rhymed --help`, and as a sentence in its own
    module: str  # of this package
    add: str = "add"  # the module's function that adds arguments and handler to the command's parser


COMMANDS = {
    "init": Command("write a folder to start from: rows, reward, configuration, README", "init"),
    "migrate-config": Command("translate a GRPOConfig of TRL or a configuration of verl into TOML", "migrate"),
    "check": Command("check a run before it starts: batch arithmetic, memory, first prompts, one reward", "check"),
    "run": Command("start, supervise and stop every process of a run on this machine", "run"),
    "launch": Command("write the files with which Slurm starts a run", "launch"),
    "eval": Command("mean@k and pass@k of a checkpoint on held-out prompts", "eval"),
    "runs": Command("list the runs of a folder: state, steps, rewards, age", "runs"),
    "top": Command("watch a run in a live terminal: queues, steps, workers, curves", "top"),
    "queues": Command("show every queue of a run, and what each worker holds", "queues"),
    "steer": Command("pause or resume a run; drain a worker", "steer", "add_steer"),
    "scale": Command("change how many rollout, environment or reward workers a living run has", "steer", "add_scale"),
    "view": Command("serve the dashboard of a run", "dashboard"),
    "logs": Command("show the logs of all processes of a run by time", "logs"),
    "report": Command("write a run's report: the dashboard's page as one file", "dashboard", "add_report"),
    "history": Command("inspect, export, import and check the store of a run", "history"),
    "checkpoint": Command("list and verify a run's checkpoints, export one as a model", "checkpoint"),
    "worker": Command(
        "join a run as a rollout, environment or reward worker, or as its trainer", "processes", "add_worker"
    ),
    "broker": Command("serve the control plane of a run", "processes", "add_broker"),
    "store": Command("serve the history store of a run", "processes", "add_store"),
    "upload": Command(
        "keep checkpoints and backups of a run in run.remote; `rhymed run` starts it", "processes", "add_upload"
    ),
    "health": Command(
        "exit status 0 if this host's broker, store or worker is healthy, else 1", "processes", "add_health"
    ),
    "keygen": Command("create the keys for a run's TCP links", "keygen"),
    "prepare": Command(
        "download a run's model and read its dataset, for a broker without these libraries", "prepare"
    ),
    "bench": Command("measure what drafts gain with a model, in turns on this machine", "bench"),
    "sim": Command("simulate how long each schedule takes on a given number of workers", "sim"),
}


def parser(words: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """For the command that a call begins with, the others are names with a help text; `words` None: all commands."""
    top = Parser(
        prog="rhymed",
        description="Reinforcement learning of language models with rollouts that are drafted from history.",
    )
    add_examples(top, "rhymed init mine", "rhymed check mine/config.toml", "rhymed run mine/config.toml")
    top.add_argument("--version", action="version", version=f"rhymed {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    called = None if words is None else next((word for word in words if not word.startswith("-")), "")
    for name, command in COMMANDS.items():
        own = make_parser(commands, name, command.about)
        if called in (None, name):
            getattr(importlib.import_module(f"{__name__}.{command.module}"), command.add)(own)
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


GONE = {
    "checkpoint push": "call `rhymed checkpoint export RUN FOLDER`, and then `hf upload USER/NAME FOLDER`",
    "completion": "`pip install shtab`, and `shtab --shell=bash rhymed.start.cli.parser` prints the script",
    "drafter": "a fitted head gained nothing over history; drafts.method = 'history+engine' has vLLM's own heads",
    "history audit --against": "`rhymed history compare RUN OTHER` compares the samples of two runs",
    "history repair": "put a copy of the store back, or continue with `rhymed run --resume RUN --without-history`",
    "history restore --list": "where no backup is as old as `--steps` asks, the error names those that are there",
    "keygen --rotate": "stop the run, and resume it with other keys",
    "launch kubernetes": "examples/clusters/kubernetes and examples/clusters/kuberay are manifests to copy",
    "model": "`rhymed prepare CONFIG` downloads the model of a run, and `rhymed check CONFIG` tries it",
    "logs --step": "`grep 'step 4'` finds the lines of a step",
    "queues --watch": "`rhymed top` draws a picture every second; a script calls `rhymed queues --json` in a loop",
    "run --events": "read metrics.jsonl and end.json of the run's folder, or the dashboard's answers (docs/http.md)",
    "sim --out": "`rhymed sim --json > FILE` has the table",
    "sweep": "call `rhymed run` or `rhymed.train` in a loop, which docs/runs.md has; W&B and Optuna search settings",
    "upload --stay": "`rhymed upload --once` completes the copy of a run that has ended",
}
"""Commands that earlier releases had -> what serves in their place."""


def _call(argv: Sequence[str] | None) -> int:
    given = sys.argv[1:] if argv is None else argv
    for command, instead in GONE.items():
        words = command.split()
        if given[:1] == words[:1] and set(words) <= set(given):
            show(f"rhymed: `rhymed {command}` is gone: {instead}", file=sys.stderr)
            return EXIT_MISTAKE
    arguments = parser(given).parse_args(argv)
    from rhymed.core.errors import HOPELESS, RhymedError
    from rhymed.core.printable import visible
    from rhymed.core.unloadable import hide_unloadable

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
