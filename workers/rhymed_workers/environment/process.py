"""One process with environments as its pool sees it: asked many things at once, killed when user code hangs.

A request's time runs while user code works for it, not while it waits for that of others in the process. An async
call ends itself when its time is over (rhymed_workers.environment.hosting.runner). A sync one, or one that does not
end, costs the process: the request fails, and all others of the process are lost through no fault of theirs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Coroutine, Sequence
from typing import Any, Self

import msgspec

from rhymed.core.config import Config
from rhymed.core.config.checks import QUEUED
from rhymed.core.errors import DataError, EnvironmentFailed, EnvironmentLost, EnvironmentUnusable
from rhymed.core.tasks import watched
from rhymed_workers.environment.protocol import MOST_BYTES, Answer, Moved, Phase, Ready, Reply, Request
from rhymed_workers.sandbox.jailed import Jailed, ProcessEnded, spawn
from rhymed_workers.sandbox.plain import packed

log = logging.getLogger(__name__)

MAX_STARTS, RESTART_S = 3, 0.5  # killed so often in a row while it loads: more may not help
START_S = 120.0  # to import the user's code, on a loaded machine
GRACE_S = 5.0  # for a call that is cancelled to end


class Asked:
    """A request without an answer. `phase` None: the process has reported none. `begun`: user code ran for it."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.phase: Phase | None = None
        self.begun = False
        self.timer: asyncio.TimerHandle | None = None

    def stop(self) -> None:
        if self.timer is not None:
            self.timer.cancel()

    def fail(self, error: Exception) -> None:
        self.stop()
        if not self.answer.done():
            self.answer.set_exception(error)
            self.answer.exception()  # whoever asked may have left


class EnvironmentProcess(Jailed):
    """`names`: samples whose environments it has -> turns that they have seen."""

    def __init__(self, process: asyncio.subprocess.Process, report: int, config: Config) -> None:
        settings = config.environment
        super().__init__(process, report, config.reward.model_copy(update={"memory_gib": settings.memory_gib}))
        self._limit_s, self._what = settings.timeout_s, settings.stateful or settings.tools or "environment.mcp"
        self._asked: dict[int, Asked] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._listening: asyncio.Task[None] | None = None
        self._why = ""  # it was killed
        self.ready = Ready()
        self.names: dict[str, int] = {}

    @property
    def usable(self) -> bool:
        """False also from the moment at which it is blamed for something, before it has ended."""
        return super().usable and not self.drained and not self._why

    @property
    def waiting(self) -> int:
        """Requests without an answer."""
        return len(self._asked)

    @classmethod
    async def start(cls, config: Config, deadline_s: float = START_S) -> Self:
        """Returns when the user's code is loaded. Raises `EnvironmentUnusable` when it cannot be, and
        `EnvironmentFailed` when another start may help: something killed it, or a server does not answer.

        Starts again if something kills it while it loads. If the user's code does that, it does so every time.
        """
        for attempt in range(1, MAX_STARTS):
            try:
                return await cls._start(config, deadline_s)
            except EnvironmentLost as error:
                log.warning("process with environments not started (%d of %d): %s", attempt, MAX_STARTS, error)
                await asyncio.sleep(RESTART_S)
        return await cls._start(config, deadline_s)

    @classmethod
    async def _start(cls, config: Config, deadline_s: float) -> Self:
        started = cls(*await spawn(config.reward, "rhymed_workers.environment.hosting.child"), config)
        try:
            await started._load(config, deadline_s)
        except BaseException:
            await started.kill()
            raise
        started._listening = started._do(started._listen())
        return started

    async def _load(self, config: Config, deadline_s: float) -> None:
        limits = {"file_mib": config.reward.file_mib, "open_files": config.reward.open_files}
        try:
            async with asyncio.timeout(deadline_s):
                await self.write(packed({"settings": config.environment}, **limits))
                self.ready = msgspec.msgpack.decode(await self.read(), type=Ready)
        except TimeoutError:
            raise EnvironmentFailed(f"{self._what} was not loaded within {deadline_s:g} s") from None
        except (ProcessEnded, msgspec.MsgspecError) as error:
            end = await self.explain_end(error)
            kind = EnvironmentUnusable if self.ended_itself(error) else EnvironmentLost
            raise kind(f"loading {self._what}: the process ended with {end}") from None
        if self.ready.error:
            raise (EnvironmentFailed if config.environment.url or config.environment.mcp else EnvironmentUnusable)(
                self.ready.error
            )

    async def ask(self, request: Request) -> Answer:
        """Raises `EnvironmentFailed`: the environment is broken, or has ended its process, which `usable` tells;
        `EnvironmentLost`: another one has; `DataError`: the sample's row is at fault."""
        if not self.usable:
            raise EnvironmentLost(f"{self._what}: its process has ended", begun=False)
        number, asked = secrets.randbits(63), Asked()
        body = msgspec.msgpack.encode(msgspec.structs.replace(request, number=number))
        self._asked[number] = asked
        self._watch(number, "queued")
        with contextlib.suppress(ProcessEnded):  # `_listen` knows why
            await self.write(body)
        answer = await asyncio.shield(asked.answer)  # the process goes on with it if nobody waits any more
        if answer.unsuitable:
            raise DataError(answer.error)
        if answer.error:
            raise EnvironmentFailed(answer.error)
        return answer

    async def kill(self) -> None:
        """Ends it, and reads what it had reported until then before its requests fail."""
        await super().kill()
        if self._listening is not None and self._listening is not asyncio.current_task():
            await asyncio.wait([self._listening], timeout=GRACE_S)
        _fail(self._asked, self._ended(), drained=self.drained)

    async def _listen(self) -> None:
        """Until the process ends."""
        try:
            while True:
                self._take(msgspec.msgpack.decode(await self.read(MOST_BYTES), type=Reply))
        except (ProcessEnded, msgspec.MsgspecError) as reason:
            asked, self._asked = self._asked, {}
            blamed = [] if self._why else _suspects(asked)
            drained = await self.ends() and self.drained  # a process that lives on may only have closed its pipe
            end = await self.explain_end(reason)
            _fail(asked, self._ended(f" with {end}"), blamed, drained=drained)

    def _ended(self, how: str = "") -> str:
        return self._why or f"{self._what}: its process ended{how}"

    def _take(self, reply: Any) -> None:
        asked = self._asked.get(reply.number)
        if asked is None:
            raise ProcessEnded("an answer that it was not asked for")
        match reply:
            case Moved(phase=phase):
                asked.phase = phase
                asked.begun |= phase in ("sync", "async")
                self._watch(reply.number, phase)
            case Answer():
                asked.stop()
                del self._asked[reply.number]
                if not asked.answer.done():
                    asked.answer.set_result(reply)

    def _watch(self, number: int, phase: Phase) -> None:
        """Its time in this phase begins. Whoever waits has up to `QUEUED` others before them."""
        seconds = {"queued": QUEUED * self._limit_s, "sync": self._limit_s, "async": self._limit_s + GRACE_S}[phase]
        asked, loop = self._asked[number], asyncio.get_running_loop()
        asked.stop()
        asked.timer = loop.call_later(seconds, lambda: self._do(self._late(number, phase)))

    async def _late(self, number: int, phase: Phase) -> None:
        asked = self._asked.get(number)
        if asked is None or not self.alive or self._why:
            return
        if phase == "queued":
            waited = f"{self._what} waited {QUEUED * self._limit_s:g} s"
            if any(each.phase in ("sync", "async") for each in self._asked.values()):
                asked.fail(EnvironmentLost(f"{waited} for others in its process"))
                return
            # No request is with user code, and none gets there: a thread or a handler of that code has the process.
            self._why = f"{waited} in a process that did nothing, and was killed"
            await self.kill()
            return
        self._why = (
            f"{self._what} took longer than environment.timeout_s = {self._limit_s:g} s and was killed{self.reason()}"
        )
        asked.fail(EnvironmentFailed(self._why))
        await self.kill()

    def _do(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return watched(work, self._broken, self._tasks)

    def _broken(self, error: BaseException) -> None:
        """The task that watches the process has failed, so no time limit applies to its requests: they fail."""
        log.error("the watch of a process with environments failed", exc_info=error)
        self._why = self._why or f"{self._what}: the watch of its process failed ({error})"
        _fail(self._asked, self._why)
        if self.alive:
            watched(self.kill(), keep=self._tasks)


def _suspects(asked: dict[int, Asked]) -> list[int]:
    """Requests for which user code was running when the process ended by itself. One that awaited did nothing, unless
    no other was running."""
    running = [number for number, each in asked.items() if each.phase == "sync"]
    return running or [number for number, each in asked.items() if each.phase == "async"]


def _fail(asked: dict[int, Asked], why: str, blamed: Sequence[int] = (), *, drained: bool = False) -> None:
    """All that has no answer: the process has ended. `drained`: all of its reports were read, so also those that user
    code begins, which come before that code runs."""
    for number, each in asked.items():
        lost = EnvironmentLost(why, begun=each.begun or not drained)
        each.fail(EnvironmentFailed(why) if number in blamed else lost)
    asked.clear()
