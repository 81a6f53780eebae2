"""A pool of processes with environments.

A sample's environment lives in one process until it is closed; plain tools have no state, so any process may call
them. The pool counts the turns that an environment has seen: with one too many or too few it is not the sample's any
more. A process has many requests at once. User code that hangs costs its process, with the environments of other
samples: who needs them rebuilds them. A process that ended is replaced when it is needed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Self

from rhymed.core.config import Config
from rhymed.core.config.checks import QUEUED
from rhymed.core.errors import EnvironmentDown, EnvironmentFailed, EnvironmentLost, EnvironmentUnusable
from rhymed.core.tasks import watched
from rhymed.inputs.chats import Chat
from rhymed.inputs.rows import Row
from rhymed_workers.environment.process import EnvironmentProcess
from rhymed_workers.environment.protocol import Answer, Close, Open, Ready, Request, Step, Stepped, calls_text
from rhymed_workers.sessions.calls import Read

log = logging.getLogger(__name__)

AGAIN_S = 10.0  # after a failure to start another process, while there is one

UNKNOWN = -1  # turns: it was asked, and has not answered


class Opened(NamedTuple):
    """What a sample begins with."""

    chat: Chat
    tools: list[str]  # names of those that it has


class Environments:
    """`async with Environments(config) as pool:`; raises `EnvironmentFailed` if the user's code cannot be loaded."""

    def __init__(self, config: Config, folder: Path | None = None) -> None:
        """`folder`: of the run, to compare files with their content at its start; None: it has none."""
        self._config, self._folder = config, folder
        self._processes: list[EnvironmentProcess] = []
        self._starting = asyncio.Lock()
        self._more: asyncio.Task[None] | None = None  # starts a process while others work
        self._failed_at = -math.inf  # time.monotonic when a process did not start
        self.about = Ready()

    async def __aenter__(self) -> Self:
        first = await self._another()
        self._processes, self.about = [first], first.ready
        log.info("%s; tools: %s", first.isolation(), ", ".join(sorted(self.names)) or "none of their own")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._more is not None:
            self._more.cancel()
            await asyncio.gather(self._more, return_exceptions=True)
        await asyncio.gather(*(process.kill() for process in self._processes))

    @property
    def names(self) -> set[str]:
        """Of the tools."""
        return {str(tool.get("function", {}).get("name", "")) for tool in self.about.tools}

    @property
    def idempotent(self) -> set[str]:
        return set(self.about.idempotent)

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes if process.usable]

    def has(self, name: str, turns: int) -> bool:
        """Whether the sample's environment lives, and has seen so many turns."""
        process = self._host(name)
        return self.about.kind == "tools" or (process is not None and process.names[name] == turns)

    @property
    def slots(self) -> int:
        """Samples that may be here at once. Those that wait for async functions cost nothing; those that wait for
        sync ones wait for each other."""
        settings = self._config.environment
        return settings.concurrency if self.about.awaits else settings.processes * QUEUED

    async def open(self, name: str, row: Row, chat: Chat) -> Opened:
        """Makes the sample's environment again."""
        if self.about.kind == "tools":
            return Opened(chat, sorted(self.names))
        await self.close(name)
        process = await self._least()
        process.names[name] = UNKNOWN
        answer = await self._ask(process, Open(name, json.dumps(row, ensure_ascii=False), chat))
        process.names[name] = 0
        return Opened(answer.chat, answer.tools)

    async def step(self, name: str, read: Read, *, last: bool) -> Stepped:
        """The environment's answer to a turn."""
        process = await self._least() if self.about.kind == "tools" else self._host(name)
        if process is None:
            raise EnvironmentLost(f"the environment of {name} is lost", begun=False)
        seen = process.names.get(name)
        if seen is not None:
            process.names[name] = UNKNOWN
        answer = await self._ask(process, Step(name, read.text, calls_text(read.calls), read.malformed, last))
        if seen is not None:
            process.names[name] = seen + 1
        assert answer.stepped is not None, "a step is answered by one"
        return answer.stepped

    async def end(self, name: str) -> Stepped:
        """The environment's reward for the episode, and its state; nothing for tools, and for an environment that
        rewards its steps."""
        if self.about.kind != "methods":
            return Stepped()
        return await self.step(name, Read(""), last=True)

    async def close(self, name: str) -> None:
        process = self._host(name)
        if process is not None:
            try:
                await self._ask(process, Close(name))
            except EnvironmentFailed as error:
                log.warning("closing the environment of %s: %s", name, error)
            process.names.pop(name, None)

    async def _ask(self, process: EnvironmentProcess, request: Request) -> Answer:
        try:
            return await process.ask(request)
        finally:
            if not process.usable and process in self._processes:
                self._processes.remove(process)
                await process.kill()

    def _host(self, name: str) -> EnvironmentProcess | None:
        return next((one for one in self._processes if name in one.names and one.usable), None)

    async def _least(self) -> EnvironmentProcess:
        """The process with the least to do; a new one while there may be more and all have something to do.

        Tools are called at once where they are: only environments, which stay where they begin, wait for a process
        that starts. Raises `EnvironmentUnusable` and `EnvironmentDown` if none is left and none starts."""
        usable = [one for one in self._processes if one.usable]
        if self.about.kind == "tools" and usable:
            if self._lacks(usable) and not self._starting.locked() and self._more is None:
                self._more = watched(self._start_more())
            return min(usable, key=_load)
        async with self._starting:
            self._processes = [one for one in self._processes if one.usable]
            if self._lacks(self._processes):
                await self._start()
            return min(self._processes, key=_load)

    def _lacks(self, usable: Sequence[EnvironmentProcess]) -> bool:
        """Whether another process would have something to do, and may start."""
        busy = all(one.waiting or one.names for one in usable)
        waits = usable and time.monotonic() < self._failed_at + AGAIN_S
        return busy and not waits and len(usable) < self._config.environment.processes

    async def _start_more(self) -> None:
        try:
            async with self._starting:
                await self._start()
        except EnvironmentFailed as error:  # none is left: who needs one starts it
            log.warning("%s", error)
        finally:
            self._more = None

    async def _start(self) -> None:
        """Raises `EnvironmentUnusable` and `EnvironmentDown` if no other one is left."""
        try:
            self._processes.append(await self._another())
        except (EnvironmentFailed, OSError) as error:
            self._failed_at = time.monotonic()
            if any(one.usable for one in self._processes):
                log.warning("another process with environments did not start: %s", error)
            elif isinstance(error, EnvironmentUnusable):
                raise
            else:
                raise EnvironmentDown(f"no process with environments is left, and none starts: {error}") from error

    async def _another(self) -> EnvironmentProcess:
        """Raises `EnvironmentUnusable` also for a file that was edited since the run was started."""
        process = await EnvironmentProcess.start(self._config)
        return await process.unedited(self._folder, self._config, "environment", EnvironmentUnusable)


def _load(process: EnvironmentProcess) -> tuple[int, int]:
    return process.waiting, len(process.names)
