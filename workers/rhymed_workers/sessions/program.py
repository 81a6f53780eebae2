"""One program of a user as its session sees it: started in a cage, watched, ended.

Invariant: its environment has no setting of the run, and nothing that it started outlives it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from rhymed.config import Config
from rhymed.errors import EnvironmentFailed
from rhymed_workers.scoring.caged import Caged, ProcessEnded, spawn

LAST_BYTES = 1 << 13  # of its output
LAST_LINES = 12
LONGEST_VARIABLE = 1 << 16  # bytes; the kernel takes twice that
OUTPUT_S = 2.0  # for its last words, after it has ended


def command_of(config: Config) -> list[str]:
    """Raises `EnvironmentFailed` for a command that cannot be run."""
    command = config.environment.command
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise EnvironmentFailed(f"environment.command = {command!r}: {error}") from None
    if not words or shutil.which(words[0], path=_path()) is None:
        raise EnvironmentFailed(f"environment.command = {command!r}: there is no program {(words or [''])[0]!r}")
    return words


def _path() -> str:
    """Programs find the Python of the run first, also if its environment is not activated."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def environment_of(base: Mapping[str, str], host: str, given: Mapping[str, str]) -> dict[str, str]:
    """`base`: the worker's. No proxy is asked for `host`."""
    kept = {name: value for name, value in base.items() if not name.startswith("RHYMED_")}
    direct = {name: ",".join(filter(None, [base.get(name), host])) for name in ("NO_PROXY", "no_proxy")}
    return {**kept, **direct, "PATH": _path(), **given}


class Program(Caged):
    """`ended`: its exit status; negative: a signal."""

    def __init__(self, process: asyncio.subprocess.Process, report: int, config: Config) -> None:
        limits = config.reward.model_copy(update={"memory_gib": config.environment.memory_gib})
        super().__init__(process, report, limits)
        self._output, self._command = b"", config.environment.command
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._reading = asyncio.ensure_future(self._read())
        self.ended = asyncio.ensure_future(process.wait())

    @classmethod
    async def start(cls, config: Config, words: list[str], row: str, host: str, given: Mapping[str, str]) -> Self:
        """`row`: JSON. Raises `EnvironmentFailed`."""
        settings = config.environment
        program = cls(*await spawn(config.reward, "rhymed_workers.sessions.child"), config)
        try:
            order = {
                "command": words,
                "environment": environment_of(os.environ, host, {**given, "RHYMED_ROW": program._row(row)}),
                "memory_bytes": settings.memory_gib * (1 << 30),
                "file_bytes": config.reward.file_mib << 20,
                "open_files": config.reward.open_files,
            }
            await program.write(json.dumps(order).encode())
        except ProcessEnded:
            raise EnvironmentFailed(await program.explain()) from None
        except BaseException:
            await program.kill()
            raise
        return program

    def _row(self, row: str) -> str:
        """The row itself, or the file that has it."""
        if len(row.encode()) <= LONGEST_VARIABLE:
            return row
        self._folder = tempfile.TemporaryDirectory(prefix="rhymed-row-")
        file = Path(self._folder.name, "row.json")
        file.write_text(row)
        return str(file)

    async def _read(self) -> None:
        stdout = self._process.stdout
        assert stdout is not None
        while part := await stdout.read(1 << 16):
            self._output = (self._output + part)[-LAST_BYTES:]

    async def kill(self) -> None:
        await super().kill()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._reading, OUTPUT_S)
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    async def explain(self) -> str:
        """How it ended, and its last words."""
        how = await self.explain_end(ProcessEnded("no exit status"))
        return f"{self._command} ended with {how}{self.words()}"

    def words(self) -> str:
        """Its last lines of output, as the end of a sentence."""
        lines = self._output.decode(errors="replace").strip().splitlines()[-LAST_LINES:]
        return f"; its last lines: {' | '.join(lines)}" if lines else ""
