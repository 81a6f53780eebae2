"""A process and the terminal or pipe that it writes to: where what it does is worth more, it outlives both.

Owns what happens when nobody reads any more (`| head`, a dropped ssh connection). Invariant: after `outlive` and
within `lasting`, neither the terminal's end nor a gone reader ends the process. Knows nothing of what is written.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast

log = logging.getLogger(__name__)

GONE = (errno.EPIPE, errno.EIO)  # no reader; no terminal
STANDARD = (0, 1, 2)  # input, output, errors


class Lasting:
    """A text stream that never raises for want of a reader or of room: what cannot be written is told to the log."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream or open(os.devnull, "w")  # noqa: SIM115
        self._fails = False  # told already; what tells it may write here, too
        self._taken = True  # the last text, maybe only by a buffer

    def write(self, text: str) -> int:
        taken = False
        with self._told():
            self._stream.write(text)
            taken = True
        self._taken = taken
        return len(text)

    def flush(self) -> None:
        with self._told():
            self._stream.flush()
            self._fails = self._fails and not self._taken  # with nothing to write, nothing is known

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in GONE:
                _forsake(self._stream.fileno())  # what waits to be written goes there too
            told, self._fails = self._fails, True
            if not told:
                log.warning("nobody reads what is printed (%s); going on", error.strerror)


@contextlib.contextmanager
def lasting() -> Iterator[None]:
    """Standard output and errors are `Lasting` within."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast(TextIO, Lasting(stream)) for stream in before)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        sys.stdout, sys.stderr = before


def outlive() -> None:
    """On the running event loop: that the terminal goes ends nothing, as mostly nobody wished it to go."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return  # nohup has seen to it, for what is started from here, too
    terminals = [number for number in STANDARD if os.isatty(number)]

    def gone() -> None:
        for number in terminals:
            if not os.isatty(number):
                _forsake(number)
        log.warning("the terminal is gone; going on without it. To end this: kill %d", os.getpid())

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, gone)


def _forsake(number: int) -> None:
    """What goes there from now on is lost."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, number)
    os.close(nowhere)
