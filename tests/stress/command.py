"""The command lines of `python -m tests.stress.NAME` and `python -m tests.hostile.NAME`."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

from rhymed.core.errors import HOPELESS, RhymedError
from rhymed.start.cli import EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_MISTAKE


def parser(module: str, about: str) -> argparse.ArgumentParser:
    """With the options that all share. An option that is not given does not reach `run`, which knows the default."""
    made = argparse.ArgumentParser(
        prog=f"python -m {module}", description=about, argument_default=argparse.SUPPRESS, allow_abbrev=False
    )
    made.add_argument("--quick", action="store_true", default=False, help="a small version, to see that it works")
    made.add_argument("--json", action="store_true", default=False, help="print the result as one JSON object")
    return made


def call(run: Callable[..., Any], parser: argparse.ArgumentParser, argv: Sequence[str] | None = None) -> int:
    """Runs it with the parsed options. The exit status is 1 if its result has `good: False`."""
    options = vars(parser.parse_args(argv))
    as_json = options.pop("json")
    # SIGTERM ends it as Ctrl-C does, so that the processes it started end too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
            result = run(**options)
    except RhymedError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return EXIT_MISTAKE if isinstance(error, HOPELESS) else EXIT_FAILURE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    if as_json:
        print(json.dumps(result, indent=2))
    return int(isinstance(result, dict) and result.get("good") is False)
