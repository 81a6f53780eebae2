"""Lets a process survive the loss of its terminal or of the reader of its output (SIGHUP, EPIPE, EIO).

Used where the work is worth more than the output, e.g. after `| head` or a dropped ssh connection. Knows nothing of
what is written.
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


class SafeStream:
    """A text stream that never raises `OSError`; the first of a series of failed writes is logged."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream or open(os.devnull, "w")  # noqa: SIM115
        self._failing = False  # and logged; the log may write to this stream too
        self._accepted = True  # the last text, perhaps only by a buffer

    def write(self, text: str) -> int:
        accepted = False
        with self._without_errors():
            self._stream.write(text)
            accepted = True
        self._accepted = accepted
        return len(text)

    def flush(self) -> None:
        with self._without_errors():
            self._stream.flush()
            self._failing = self._failing and not self._accepted  # flushing nothing proves nothing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextlib.contextmanager
    def _without_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in GONE:
                _redirect_to_null(self._stream.fileno())  # buffered text must not fail again
            logged, self._failing = self._failing, True
            if not logged:
                log.warning("output cannot be written (%s); continuing without it", error.strerror)


@contextlib.contextmanager
def ignore_output_errors() -> Iterator[None]:
    """Within the block, standard output and errors are `SafeStream`s."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast(TextIO, SafeStream(stream)) for stream in before)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        sys.stdout, sys.stderr = before


def survive_hangup() -> None:
    """On the running event loop: SIGHUP is logged, and the process continues."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return  # under nohup; child processes inherit that, too
    terminals = [number for number in STANDARD if os.isatty(number)]

    def hung_up() -> None:
        for number in terminals:
            if not os.isatty(number):
                _redirect_to_null(number)
        log.warning("the terminal is gone; continuing without it. To end this process: kill %d", os.getpid())

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hung_up)


def _redirect_to_null(number: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, number)
    os.close(null)
