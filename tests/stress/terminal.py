"""A real `rhymed top` in a pseudo-terminal, to measure its cost.

Owns the process and its terminal, and reads everything it draws, so that it never blocks. Does not interpret the
screen, except that there is one.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import struct
import sys
import termios
from collections.abc import AsyncIterator

import psutil

from rhymed.core.errors import ConfigError

COLUMNS, LINES = 120, 40
START_S = 60.0  # until the first screen
MARK = b"tok/s"  # of the curves: there is a picture
TAIL = 2000  # bytes of output that are kept for an error


class Terminal:
    """`drawn`: bytes so far."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.drawn = 0
        self.tail = b""
        self.started = asyncio.Event()  # there is a screen, or the process has ended
        self.over = False

    def read(self) -> None:
        try:
            new = os.read(self._fd, 1 << 16)
        except OSError:  # the last process that had it open has ended
            new = b""
        if not new:
            self.over = True
            asyncio.get_running_loop().remove_reader(self._fd)
        self.drawn += len(new)
        if MARK in self.tail + new or self.over:
            self.started.set()
        self.tail = (self.tail + new)[-TAIL:]

    def check(self) -> None:
        """Raises `ConfigError` with its output if it has no screen or has ended."""
        if self.over or not self.started.is_set():
            how = "has ended" if self.over else f"has no screen after {START_S:g} s"
            raise ConfigError(f"`rhymed top` {how}: {self.tail.decode(errors='replace').strip()}")


@contextlib.asynccontextmanager
async def watching(broker: str) -> AsyncIterator[tuple[Terminal, psutil.Process]]:
    """Runs `rhymed top` for this address, from its first screen on."""
    outside, inside = pty.openpty()
    fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    command = [sys.executable, "-m", "rhymed", "top", "--broker", broker]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=inside, stdout=inside, stderr=inside, env=environment | {"TERM": "xterm-256color"},
        start_new_session=True,
    )  # fmt: skip
    os.close(inside)
    terminal = Terminal(outside)
    asyncio.get_running_loop().add_reader(outside, terminal.read)
    try:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(terminal.started.wait(), START_S)
        terminal.check()
        try:
            yield terminal, psutil.Process(process.pid)
        finally:
            terminal.check()  # its end explains more than errors that followed
    finally:
        asyncio.get_running_loop().remove_reader(outside)
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        os.close(outside)
