"""`rhymed run --events` or `rhymed eval --events` as a child process, from its start to its end.

The child leads a session of its own: an interrupt of a terminal or a notebook reaches this process alone, which asks
the child to end its run and waits. When this process dies, the child stops the run by itself.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

import msgspec

from rhymed.core.config.load import is_setting
from rhymed.core.errors import RhymedError, RunFailed, by_name
from rhymed.start.api.display import Display
from rhymed.start.launch.events import AnyEvent, Ended, Failed, Started

STOPPED = (130, -signal.SIGINT, -signal.SIGTERM)  # exit statuses of a run that was interrupted


@dataclass
class Outcome:
    """`folder`: None where the checks refused the run. `error`: None where it finished."""

    folder: Path | None = None
    error: RhymedError | None = None
    interrupted: bool = False


class Child:
    def __init__(self, arguments: Sequence[str]) -> None:
        """Starts it. Settings of the environment are in its configuration already, so it does not get them."""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rhymed", *arguments, "--events"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
            env={name: value for name, value in os.environ.items() if not is_setting(name)},
        )
        self._events: queue.SimpleQueue[AnyEvent | None] = queue.SimpleQueue()
        self._reader = Thread(target=self._read, name="rhymed-events", daemon=True)
        self._reader.start()

    def interrupt(self) -> None:
        """Ask it to stop the run so that it can be resumed. From any thread."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGINT)

    def follow(self, display: Display) -> Outcome:
        """Until it has ended. An interrupt (Ctrl-C) is passed on, and its end is awaited all the same."""
        outcome, status, over = Outcome(), None, False
        while not over:
            try:
                event = self._events.get()
                over = event is None
                if isinstance(event, Started):
                    outcome.folder = Path(event.folder)
                elif isinstance(event, Failed):
                    outcome.error = by_name(event.error)(event.text)
                elif isinstance(event, Ended):
                    status = event.status
                if event is not None:
                    display.handle(event)
            except KeyboardInterrupt:
                outcome.interrupted = True
                self.interrupt()
            except BaseException:
                self.interrupt()
                self._wait()
                raise
        ended = self._wait()
        display.close()
        return self._judged(outcome, ended if status is None else status)

    def _judged(self, outcome: Outcome, status: int) -> Outcome:
        if outcome.error is None and status in STOPPED:
            outcome.interrupted = True
        elif outcome.error is None and status != 0:
            lines = self._last_words.strip().splitlines() or ["it printed nothing"]
            outcome.error = RunFailed(f"the process of the run ended with status {status}: {lines[-1]}")
        return outcome

    def _read(self) -> None:
        assert self._process.stdout is not None, "it is a pipe"
        decode = msgspec.json.Decoder(AnyEvent).decode
        try:
            for line in self._process.stdout:
                with suppress(msgspec.MsgspecError, UnicodeDecodeError):  # what a library prints is no event
                    self._events.put(decode(line))
        finally:
            self._events.put(None)

    def _wait(self) -> int:
        while True:
            try:
                status = self._process.wait()
                break
            except KeyboardInterrupt:
                self.interrupt()
        self._reader.join()
        assert self._process.stdout is not None, "it is a pipe"
        self._process.stdout.close()
        self._errors.seek(0)
        self._last_words = self._errors.read().decode(errors="replace")
        self._errors.close()
        return status
