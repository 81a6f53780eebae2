"""Processes on this machine, each in a session of its own so that an engine's children end with it."""

from __future__ import annotations

import os
from asyncio.subprocess import DEVNULL, Process, create_subprocess_exec
from pathlib import Path
from typing import BinaryIO

from rhymed.config.load import is_setting
from rhymed.placement.plan import Command
from rhymed.service.children import kill_session, lines_of, terminate


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
        return lines[-1].removeprefix("rhymed: ") if lines else ""


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
