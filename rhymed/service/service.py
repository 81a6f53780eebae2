"""The frame of every process: an actor with background tasks, signals, logs, and a watch on its event loop.

A service starts, works until it is told to stop (SIGTERM, SIGINT, `self.stop()`), hands back what it holds, and
closes what it opened. A background task that fails ends the service with that error: whoever supervises it starts it
again, clean. So does an event loop that does not turn any more: `rhymed.service.watchdog` ends its process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Coroutine
from typing import Any

from rhymed.errors import RhymedError

log = logging.getLogger(__name__)

LAG_INTERVAL_S = 0.05
EX_HOPELESS = 2  # exit status that tells a supervisor not to try again
DRAIN_S = 5.0  # for handing back what is in hand; well below what a supervisor or container engine waits


class LagMeter:
    """How late the event loop wakes who asked to sleep: the queueing delay that everything on it suffers."""

    def __init__(self, window: int = 400) -> None:
        self._late_s: deque[float] = deque(maxlen=window)
        self.turns = 0  # times that the loop has come round to us

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

    async def open(self) -> None:
        """Bind, connect, spawn. May raise: then the service ends with that error. A stop cancels it."""

    async def drain(self) -> None:
        """Hand back what is in hand: called when it was told to stop, while the background tasks still run.

        May take `DRAIN_S`; what is not done by then, or fails, is left to those who notice that we are gone.
        """

    async def close(self) -> None:
        """Undo `open`, as far as it came; called once, after the background tasks were cancelled."""

    def spawn(self, work: Coroutine[Any, Any, Any], *, vital: bool = True) -> asyncio.Task[Any]:
        """Run beside the rest. If a vital task fails, the service ends with its error."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._ended(done, vital))
        return task

    def _ended(self, task: asyncio.Task[Any], vital: bool) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
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
        """Open, work until stopped, close. Raises what ended it, if that was an error."""
        try:
            self.spawn(self.lag.watch())
            opening = self.spawn(self._open())  # beside: a signal must not wait for it
            await self._stopping.wait()
            if self._failure is None and opening.done():
                await self._hand_back()
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

    async def _hand_back(self) -> None:
        try:
            async with asyncio.timeout(DRAIN_S):
                await self.drain()
        except (RhymedError, TimeoutError) as error:
            why = str(error) or f"no time left after {DRAIN_S:g} s"
            log.warning("%s: not all was handed back: %s", self.name, why)

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
