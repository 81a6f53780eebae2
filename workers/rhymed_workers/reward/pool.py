"""A pool of scoring subprocesses.

A scorer runs user code and symbolic algebra over whatever a model wrote: it may hang, crash, print, exit, fork or
eat memory. Each runs in a process of its own (rhymed_workers.reward.process); at `reward.timeout_s` it and all that it started
are killed. A child that died or is worn is replaced, and one more than is used at a time is kept warm, since
importing a scorer takes seconds. Every item ends in exactly one `Outcome`, and what one item does to its child hurts
no other: an item whose child dies, perhaps of what an earlier one left behind, gets a second try in a fresh one.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Self

from rhymed.config import Config
from rhymed.errors import RewardError
from rhymed_workers.reward.process import MAX_STARTS, RESTART_S, Child
from rhymed_workers.scoring.child import Item
from rhymed_workers.scoring.verdict import Outcome, Verdict, combine

log = logging.getLogger(__name__)


class Pool:
    """`async with Pool(config) as pool: outcome = await pool.score(item(text, row))`."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._idle: asyncio.Queue[Child] = asyncio.Queue()
        self._slots = asyncio.Semaphore(config.reward.processes)
        self._children: set[Child] = set()
        self._replacing: set[asyncio.Task[None]] = set()
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> Self:
        """Raises `RewardError` if a scorer cannot be loaded. The spare follows later."""
        try:
            first = await Child.start_patiently(self._config)  # alone: one error, not one a process
            for line in first.said:
                log.info("%s", line)
            self._add(first)
            for _ in range(self._config.reward.processes):
                self._replace()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._replacing:
            task.cancel()
        await asyncio.gather(*self._replacing, return_exceptions=True)
        await asyncio.gather(*(child.kill() for child in self._children))
        self._children.clear()
        if self._broken.done():
            self._broken.exception()  # seen
        else:
            self._broken.cancel()

    @property
    def pids(self) -> list[int]:
        """Process ids of the living children."""
        return [child.pid for child in self._children if child.usable]

    async def score(self, item: Item) -> Outcome:
        """Wait for a free child, then at most `reward.timeout_s` a scorer; the first error ends it.

        Raises `RewardError` only if the pool is broken.
        """
        scorers = self._config.reward.all
        verdicts: list[Verdict] = []
        async with self._slots:
            child = await self._take()
            fresh = child.fresh
            try:
                for number in range(len(scorers)):
                    verdict = await child.score(item, number)
                    if not (child.usable or verdict.timeout or fresh):
                        child, fresh = await self._renew(child), True
                        verdict = await child.score(item, number) if child.usable else verdict
                    verdicts.append(verdict)
                    if verdict.error is not None:
                        break
                return combine(scorers, verdicts)
            finally:
                await self._give_back(child)

    async def _renew(self, dead: Child) -> Child:
        """A fresh one in its place; the dead one if none can be started."""
        try:
            child = await Child.start(self._config)
        except (RewardError, OSError) as error:
            log.warning("scoring process not started: %s", error)
            return dead
        self._children.discard(dead)
        self._children.add(child)
        return child

    async def _give_back(self, child: Child) -> None:
        if child.worn and child.usable:
            log.info("a scoring process is replaced: %s", child.worn)
            await child.kill()
        if child.usable:
            self._idle.put_nowait(child)
        else:
            self._bury(child)

    async def _take(self) -> Child:
        while True:
            getting = asyncio.ensure_future(self._idle.get())
            either: set[asyncio.Future[Any]] = {getting, self._broken}
            try:
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            except BaseException:
                if not getting.cancel() and not getting.cancelled():
                    self._idle.put_nowait(getting.result())
                raise
            if not getting.done():
                getting.cancel()
                self._broken.result()
            child = getting.result()
            if child.usable:
                return child
            self._bury(child)  # it died while it had nothing to do: nobody's fault that we know

    def _add(self, child: Child) -> None:
        self._children.add(child)
        self._idle.put_nowait(child)

    def _bury(self, child: Child) -> None:
        self._children.discard(child)
        self._replace()

    def _replace(self) -> None:
        task = asyncio.get_running_loop().create_task(self._start_one())
        self._replacing.add(task)
        task.add_done_callback(self._replacing.discard)

    async def _start_one(self) -> None:
        for attempt in range(1, MAX_STARTS + 1):
            try:
                self._add(await Child.start(self._config))
                return
            except (RewardError, OSError) as error:
                log.warning("scoring process not started (%d of %d): %s", attempt, MAX_STARTS, error)
                if attempt == MAX_STARTS and not self.pids and not self._broken.done():
                    self._broken.set_exception(RewardError(f"no scoring process can be started: {error}"))
                await asyncio.sleep(RESTART_S)
