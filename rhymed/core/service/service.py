"""The base of every service: an actor with background tasks and a meter of its event loop's lag.

A service opens, works until it is stopped (SIGTERM, SIGINT, `self.stop()`), drains, and closes what it opened. A
background task that fails ends the service with its error; the supervisor then restarts it in a clean state. An
event loop that hangs is ended by `rhymed.core.service.process`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Coroutine
from typing import Any

from rhymed.core.errors import RhymedError
from rhymed.core.tasks import watched

log = logging.getLogger(__name__)

LAG_INTERVAL_S = 0.05
EX_HOPELESS = 2  # exit status: a restart cannot help
EX_UNSTARTED = 69  # EX_UNAVAILABLE: a component that it needs did not start; with the same error twice, it never will
DRAIN_S = 5.0  # well below the time that a supervisor or container engine waits


class LagMeter:
    """How late the event loop wakes a sleeper: the queueing delay of everything that runs on it."""

    def __init__(self) -> None:
        self._late_s: deque[float] = deque(maxlen=400)
        self.turns = 0  # of the event loop, as far as we saw

    async def watch(self) -> None:
        while True:
            due = time.monotonic() + LAG_INTERVAL_S
            await asyncio.sleep(LAG_INTERVAL_S)
            self.turns += 1
            self._late_s.append(max(0.0, time.monotonic() - due))

    def p99_ms(self) -> float:
        """99th percentile of the last 20 seconds, milliseconds."""
        ordered = sorted(self._late_s)
        return 1000 * ordered[int(0.99 * (len(ordered) - 1))] if ordered else 0.0


class Service:
    """Base of broker, store, workers and trainer. Subclasses override `open`, `drain` and `close`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lag = LagMeter()
        self.opened = asyncio.Event()
        self._stopping = asyncio.Event()
        self._failure: BaseException | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self.closing = contextlib.AsyncExitStack()  # of what `open` has opened

    async def open(self) -> None:
        """Bind, connect, spawn. An error ends the service; a stop cancels it."""

    async def drain(self) -> None:
        """Return unfinished work: called after a stop, while the background tasks still run. Has `DRAIN_S`; on a
        timeout or an error, the peers treat the rest as lost with this process."""

    async def close(self) -> None:
        """Undo `open`, also a partial one; called once, after the background tasks were cancelled."""
        await self.closing.aclose()

    def spawn(self, work: Coroutine[Any, Any, Any], *, vital: bool = True) -> asyncio.Task[Any]:
        """Run in the background. If a vital task fails, the service ends with its error."""
        return watched(work, lambda error: self._failed(error, vital), self._tasks)

    def _failed(self, error: BaseException, vital: bool) -> None:
        log.error("%s: a background task failed", self.name, exc_info=error)
        if vital:
            self._failure = self._failure or error
            self.stop()

    def stop(self) -> None:
        """Ask the service to end; returns at once."""
        self._stopping.set()

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    async def run(self) -> None:
        """Open, work until stopped, drain, close. Raises the error that ended it, if there is one."""
        try:
            self.spawn(self.lag.watch())
            opening = self.spawn(self._open())  # as a task: a stop must not wait for it
            await self._stopping.wait()
            if self._failure is None and opening.done():
                await self._drain_in_time()
        finally:
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self.close()
        if self._failure is not None:
            raise self._failure

    async def _open(self) -> None:
        await self.open()
        self.opened.set()

    async def _drain_in_time(self) -> None:
        try:
            async with asyncio.timeout(DRAIN_S):
                await self.drain()
        except (RhymedError, TimeoutError) as error:
            why = str(error) or f"it took longer than {DRAIN_S:g} s"
            log.warning("%s: unfinished work was not returned: %s", self.name, why)

    @contextlib.asynccontextmanager
    async def running(self) -> Any:
        """`async with service.running():` for tests and for several services in one process."""
        task = asyncio.get_running_loop().create_task(self.run())
        opened = asyncio.get_running_loop().create_task(self.opened.wait())
        await asyncio.wait({task, opened}, return_when=asyncio.FIRST_COMPLETED)
        opened.cancel()
        try:
            if task.done():
                task.result()
            yield self
        finally:
            self.stop()
            await task
