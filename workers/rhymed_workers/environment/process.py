"""One process with environments as its pool sees it: asked one request at a time, killed when it takes too long."""

from __future__ import annotations

import asyncio
import secrets
from typing import Self

import msgspec

from rhymed.config import Config
from rhymed.errors import EnvironmentFailed
from rhymed_workers.environment.protocol import Answer, Ready, Request
from rhymed_workers.scorers.explain import hung_at
from rhymed_workers.scoring.caged import Caged, ProcessEnded, spawn

START_S = 120.0  # to import the user's code, on a loaded machine


class EnvironmentProcess(Caged):
    """`busy`: a request is being answered. `names`: samples whose environments it has -> turns that
    they have seen."""

    def __init__(self, process: asyncio.subprocess.Process, report: int, config: Config) -> None:
        settings = config.environment
        super().__init__(process, report, config.reward.model_copy(update={"memory_gib": settings.memory_gib}))
        self._settings, self._what = settings, settings.factory or settings.tools
        self.ready = Ready()
        self.lock = asyncio.Lock()
        self.waiting = 0  # requests, the one that is answered included
        self.names: dict[str, int] = {}

    @classmethod
    async def start(cls, config: Config, deadline_s: float = START_S) -> Self:
        """Returns when the user's code is loaded. Raises `EnvironmentFailed` when it cannot be."""
        started = cls(*await spawn(config.reward, "rhymed_workers.environment.child"), config)
        try:
            await started._load(config, deadline_s)
        except BaseException:
            await started.kill()
            raise
        return started

    async def _load(self, config: Config, deadline_s: float) -> None:
        try:
            async with asyncio.timeout(deadline_s):
                await self.write(config.model_dump_json().encode())
                self.ready = msgspec.msgpack.decode(await self.read(), type=Ready)
        except TimeoutError:
            raise EnvironmentFailed(f"{self._what} was not loaded within {deadline_s:g} s") from None
        except (ProcessEnded, msgspec.MsgspecError) as error:
            end = await self.explain_end(error)
            raise EnvironmentFailed(f"loading {self._what}: the process ended with {end}") from None
        if self.ready.error:
            raise EnvironmentFailed(self.ready.error)

    async def ask(self, request: Request) -> Answer:
        """Waits for its turn, then at most `environment.timeout_s`. Raises `EnvironmentFailed`: the environment is
        broken, or the process is dead, which `usable` tells."""
        self.waiting += 1
        try:
            async with self.lock:
                try:
                    return await self._ask(request)
                except asyncio.CancelledError:
                    await self.kill()  # it would answer the next request with this one's answer
                    raise
        finally:
            self.waiting -= 1

    async def _ask(self, request: Request) -> Answer:
        limit_s, number = self._settings.timeout_s, secrets.randbits(63)
        if not self.usable:
            raise EnvironmentFailed(f"{self._what}: its process has ended")
        try:
            async with asyncio.timeout(limit_s):
                await self.write(msgspec.msgpack.encode(msgspec.structs.replace(request, number=number)))
                answer = msgspec.msgpack.decode(await self.read(), type=Answer)
                if answer.number != number:
                    raise ProcessEnded("an answer that it was not asked for")
        except TimeoutError:
            place = hung_at(await self.traceback(), self._what.rpartition(":")[0])
            await self.kill()
            raise EnvironmentFailed(
                f"{self._what} took longer than environment.timeout_s = {limit_s:g} s and was killed"
                f"{place}{self.reason()}"
            ) from None
        except (ProcessEnded, msgspec.MsgspecError) as reason:
            raise EnvironmentFailed(
                f"{self._what}: its process ended with {await self.explain_end(reason)}"
            ) from None
        if answer.error:
            raise EnvironmentFailed(answer.error)
        return answer
