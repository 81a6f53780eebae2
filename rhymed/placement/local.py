"""Starts processes: the interface of all placements, and the one on this machine.

On this machine each process has a session of its own, so that an engine's children end with it. `Starter` and
`Running` are the interface of this machine and of Ray; `LocalStarter` is the one of this machine.
"""

from __future__ import annotations

import os
from asyncio.subprocess import DEVNULL, Process, create_subprocess_exec
from pathlib import Path
from typing import BinaryIO, Protocol

from rhymed.core.config.load import is_setting
from rhymed.core.service.children import kill_session, last_words, lines_of, terminate
from rhymed.placement.plan import Command


class LocalProcess:
    def __init__(self, process: Process, output: BinaryIO, output_start: int) -> None:
        """`output_start`: bytes that earlier processes wrote."""
        self._process, self._output, self._output_start = process, output, output_start
        self._last_words = ""

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    async def ended(self) -> int:
        try:
            status = await self._process.wait()
            self.kill()  # may still hold an engine
            self._last_words = self._read()
            return status
        finally:
            self.kill()
            self._output.close()

    def terminate(self) -> None:
        terminate(self._process)

    def kill(self) -> None:
        kill_session(self._process)

    def last_words(self) -> str:
        return self._last_words

    def _read(self) -> str:
        """From the open file, whose name may have been removed."""
        try:
            lines = lines_of(self._output, start=self._output_start)
        except OSError as error:
            return f"what it wrote cannot be read: {error}"
        return last_words(lines)


class LocalStarter:
    async def start(self, command: Command, output: Path) -> LocalProcess:
        output.parent.mkdir(parents=True, exist_ok=True)
        stream = output.open("a+b")
        start = stream.tell()  # the child's writes move it
        try:
            process = await create_subprocess_exec(
                *command.argv,
                stdin=DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
                env=supervised(output.parent) | dict(command.environment),
            )
        except BaseException:
            stream.close()
            raise
        return LocalProcess(process, stream, start)


def supervised(logs: Path) -> dict[str, str]:
    """The environment of a child: ours without settings, which the run's configuration holds already."""
    inherited = {name: value for name, value in os.environ.items() if not is_setting(name)}
    return inherited | {"RHYMED_SUPERVISED": str(logs), "RHYMED_SUPERVISOR": str(os.getpid())}


# How an engine starts one process and learns of its end. The policy, when to start it again, is the supervisor's.


class PlaceLost(Exception):
    """The machine on which a process ran is gone, or its engine took the place away: no failure of the process."""


class Running(Protocol):
    """One process, from its start to its end."""

    @property
    def alive(self) -> bool:
        """False once it has ended."""

    async def ended(self) -> int:
        """Its exit status, negative: of a signal; nothing that it started is left then. Raises `PlaceLost`."""

    def terminate(self) -> None:
        """Ask it to end. It hands back what it holds."""

    def kill(self) -> None:
        """End it, and everything that it started and left behind."""

    def last_words(self) -> str:
        """The last line of its output, after its end; empty: it wrote none."""


class Starter(Protocol):
    """An engine of placement."""

    async def start(self, command: Command, output: Path) -> Running:
        """`output`: gets what the process prints, on the machine where it runs. Waits for a place, if it takes one.
        Raises `OSError`, if it cannot be started, and `PlaceLost`."""
