"""`rhymed run --events`: what happens in a run, as one JSON object per line on standard output, for programs.

The run belongs to the program that reads: when that is gone, the run is stopped as by SIGTERM, and can be
resumed. A slow reader misses snapshots, and nothing else; it never delays the run.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import signal
import sys
from collections.abc import Iterator
from typing import Self, TypeAlias, cast

import msgspec

from rhymed.core.errors import RhymedError
from rhymed.core.messages import Queues

log = logging.getLogger(__name__)

KEPT_BYTES = 1 << 20  # for a reader that is behind; more is dropped


class Event(msgspec.Struct, frozen=True, tag_field="event", omit_defaults=True):
    """Base of all events."""


class Line(Event, frozen=True, tag="line"):
    """Text for people, without colours: a warning, the summary."""

    text: str


class Started(Event, frozen=True, tag="started"):
    """The checks are passed, the run has its folder, and its processes are being started."""

    folder: str  # absolute


class Snapshot(Event, frozen=True, tag="snapshot"):
    """About twice per second. None: the broker does not answer, e.g. not yet."""

    queues: Queues | None = None


class Notice(Event, frozen=True, tag="notice"):
    """Something happened to a process, e.g. it ended and is started again."""

    text: str


class Closing(Event, frozen=True, tag="closing"):
    """The processes are being stopped."""

    finished: bool
    why: str = ""  # what ended the run, if that was an error; it follows again at the end


class Failed(Event, frozen=True, tag="failed"):
    """Why there is no run, or why it failed. Nothing but `ended` follows."""

    error: str  # class in rhymed.core.errors
    text: str


class Ended(Event, frozen=True, tag="ended"):
    """A run that started is over."""

    status: int  # 0 finished, 1 failed, 2 failed, and something has to be changed first, 130 interrupted


AnyEvent: TypeAlias = Line | Started | Snapshot | Notice | Closing | Failed | Ended


class View:
    """What shows a run while its processes are supervised: a screen, or a program that reads events."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is shown any more, but for `failed`."""

    def report(self, event: str) -> None:
        """Something happened to a process."""

    def show(self, queues: Queues | None) -> None:
        """A new snapshot; None: the broker does not answer."""

    def closing(self, finished: bool, why: str = "") -> None:
        """The run is over; its processes are being stopped. `why`: what ended it, if that was an error."""

    def failed(self, why: str) -> None:
        """After the block: why the run has failed, and how to resume it."""


class Program(View):
    """A view that writes events into a pipe, of which it becomes the only writer."""

    def __init__(self, pipe: int) -> None:
        os.set_blocking(pipe, False)
        self._pipe, self._unsent, self._gone = pipe, b"", False

    def report(self, event: str) -> None:
        self.send(Notice(event))

    def show(self, queues: Queues | None) -> None:
        if self._flush():
            self.send(Snapshot(queues))

    def closing(self, finished: bool, why: str = "") -> None:
        self.send(Closing(finished, why))

    def failed(self, why: str) -> None:
        self.send(Failed("RunFailed", why))

    def send(self, event: Event) -> None:
        if len(self._unsent) < KEPT_BYTES:
            self._unsent += msgspec.json.encode(event) + b"\n"
        self._flush()

    def wait(self) -> None:
        """Until the reader has everything that was sent, or is gone."""
        if not self._gone:
            os.set_blocking(self._pipe, True)
            self._flush()

    def _flush(self) -> bool:
        """Whether nothing is left that the reader has no room for."""
        try:
            while self._unsent and not self._gone:
                self._unsent = self._unsent[os.write(self._pipe, self._unsent) :]
        except BlockingIOError:
            return False
        except OSError as error:
            self._gone, self._unsent = True, b""
            log.warning("the reader of this run's events is gone (%s): the run ends", error.strerror)
            os.kill(os.getpid(), signal.SIGTERM)
        return True


class _Lines(io.TextIOBase):
    """A text stream whose lines become events."""

    def __init__(self, program: Program) -> None:
        self._program, self._line = program, ""

    def write(self, text: str) -> int:
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self._program.send(Line(line))
        return len(text)


@contextlib.contextmanager
def to_program() -> Iterator[Program]:
    """Within the block, events go to standard output, and so do printed lines, as events. What other code writes to
    the file descriptor of standard output goes to that of standard errors."""
    sys.stdout.flush()
    pipe = os.dup(1)
    os.dup2(2, 1)
    program = Program(pipe)
    try:
        with contextlib.redirect_stdout(cast(io.StringIO, _Lines(program))):
            yield program
    except RhymedError as error:
        program.send(Failed(type(error).__name__, str(error)))
        raise
    finally:
        program.wait()
        os.dup2(pipe, 1)
        os.close(pipe)
