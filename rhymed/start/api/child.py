"""`rhymed run` or `rhymed eval` as a child process, from its start to its end.

The child leads a session of its own: an interrupt of a terminal or a notebook reaches this process alone, which asks
the child to end its run and waits. When this process dies, the child stops the run by itself
(`rhymed.start.launch.program`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rhymed.core.config.load import is_setting
from rhymed.core.errors import RhymedError, RunFailed, by_name
from rhymed.core.output import show
from rhymed.start.launch.program import VARIABLE

STOPPED = (130, -signal.SIGINT, -signal.SIGTERM)  # exit statuses of a run that was interrupted


@dataclass
class Outcome:
    """`folder`: None where the checks refused the run. `error`: None where it finished."""

    folder: Path | None = None
    error: RhymedError | None = None
    interrupted: bool = False


def call(arguments: Sequence[str], *, progress: bool) -> Outcome:
    """Until it has ended. An interrupt (Ctrl-C) is passed on, and its end is awaited all the same.

    `progress`: on a terminal the child shows itself; elsewhere (in a notebook, too) its lines are printed here.
    Settings of the environment are in its configuration already, so it does not get them.
    """
    own = {name: value for name, value in os.environ.items() if not is_setting(name)}
    terminal = sys.stdout is not None and sys.stdout.isatty()
    output = subprocess.DEVNULL if not progress else sys.stdout if terminal else subprocess.PIPE
    with (
        tempfile.TemporaryDirectory(prefix="rhymed-") as place,
        open(f"{place}/errors", "w+", encoding="utf-8", errors="replace") as errors,
    ):
        told, interrupted = Path(place) / "told.json", False
        with subprocess.Popen(
            [sys.executable, "-m", "rhymed", *arguments],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=errors,
            start_new_session=True,
            env={**own, VARIABLE: str(told)},
            encoding="utf-8",
            errors="replace",
        ) as process:  # whose input closes when this block is left by an error
            while process.poll() is None:
                try:
                    for line in process.stdout or ():
                        show(line, end="", flush=True)
                    process.wait()
                except KeyboardInterrupt:
                    interrupted = True
                    process.send_signal(signal.SIGINT)
        found = json.loads(told.read_text()) if told.exists() else {}
        errors.seek(0)
        last_words = errors.read().strip().splitlines() or ["it printed nothing"]
    outcome = Outcome(Path(found["folder"]) if "folder" in found else None, interrupted=interrupted)
    if "error" in found:
        outcome.error = by_name(found["error"])(found["text"])
    elif process.returncode in STOPPED:
        outcome.interrupted = True
    elif process.returncode:
        outcome.error = RunFailed(f"the process of the run ended with status {process.returncode}: {last_words[-1]}")
    return outcome
