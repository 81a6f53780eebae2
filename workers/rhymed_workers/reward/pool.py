"""A pool of scoring processes.

A scorer runs user code and symbolic algebra on model output: it may hang, crash, print, exit, fork or exhaust memory.
So each runs in a process of its own (rhymed_workers.reward.process), which is killed, with all that it started, at
`reward.timeout_s`. A process that died or has a defect is replaced, and one spare is kept ready, since importing a
scorer takes seconds. Every item ends in exactly one `Outcome`, and no item harms another: if a process dies that had
scored earlier items, which may have caused it, the item is tried once more in a fresh process. Judges
(rhymed_workers.judging) are asked after the other scorers, without a process; if all are judges, there is none.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any, Self

from rhymed.config import Config
from rhymed.errors import RewardError
from rhymed.tasks import watched
from rhymed_workers.judging.judges import Judges
from rhymed_workers.reward.process import MAX_STARTS, RESTART_S, ScoringProcess
from rhymed_workers.scoring.child import Item
from rhymed_workers.scoring.verdict import Outcome, Verdict, combine

log = logging.getLogger(__name__)


class Pool:
    """`async with Pool(config) as pool: outcome = await pool.score(item(text, row))`."""

    def __init__(self, config: Config, folder: Path | None = None) -> None:
        """`folder`: of the run, for the answers of judges."""
        self._config = config  # the scoring processes receive all of it
        self._scorers = config.reward.all
        self.judges = Judges(config, folder)
        self._caged = [index for index in range(len(self._scorers)) if index not in self.judges]
        self._idle: asyncio.Queue[ScoringProcess] = asyncio.Queue()
        self._slots = asyncio.Semaphore(config.reward.processes)
        self._processes: set[ScoringProcess] = set()
        self._starting: set[asyncio.Task[None]] = set()
        self._closed = False
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> Self:
        """Raises `RewardError` if a scorer cannot be loaded. The spare process follows later."""
        try:
            await self.judges.__aenter__()
            if self._caged:
                await self._start_first()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def _start_first(self) -> None:
        first = await ScoringProcess.start_with_retries(self._config)  # alone: one error, not one per process
        for note in first.notes:
            log.info("%s", note)
        for warning in first.warnings:
            log.warning("%s", warning)
        self._add(first)
        for _ in range(self._config.reward.processes):
            self._start_another()

    async def __aexit__(self, *_: object) -> None:
        self._closed = True  # what is being scored now ends, and starts no process any more
        for task in self._starting:
            task.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)
        await asyncio.gather(*(process.kill() for process in self._processes))
        self._processes.clear()
        await self.judges.__aexit__()
        if self._broken.done():
            self._broken.exception()  # else asyncio logs that it was never retrieved
        else:
            self._broken.cancel()

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes if process.usable]

    async def score(self, item: Item) -> Outcome:
        """Wait for a free process, then at most `reward.timeout_s` per scorer, then for judges; an error ends it.

        Raises `RewardError` only if no process can be started any more.
        """
        verdicts = await self._score_caged(item) if self._caged else {}
        if all(verdict.error is None for verdict in verdicts.values()):
            verdicts |= await self.judges.score_all(item)
        return combine(self._scorers, [verdicts[index] for index in sorted(verdicts)])

    async def _score_caged(self, item: Item) -> dict[int, Verdict]:
        """By index of the scorer."""
        verdicts: dict[int, Verdict] = {}
        async with self._slots:
            process = await self._take()
            fresh = process.fresh
            try:
                for scorer in self._caged:
                    verdict = await process.score(item, scorer)
                    if not (process.usable or verdict.timeout or fresh):
                        process, fresh = await self._replace(process), True
                        verdict = await process.score(item, scorer) if process.usable else verdict
                    verdicts[scorer] = verdict
                    if verdict.error is not None:
                        break
                return verdicts
            finally:
                await self._give_back(process)

    async def _replace(self, dead: ScoringProcess) -> ScoringProcess:
        """A fresh process in place of the dead one; the dead one if none can be started."""
        if self._closed:
            return dead
        try:
            process = await ScoringProcess.start(self._config)
        except (RewardError, OSError) as error:
            log.warning("scoring process not started: %s", error)
            return dead
        self._processes.add(process)
        await dead.kill()
        self._processes.discard(dead)
        return process

    async def _give_back(self, process: ScoringProcess) -> None:
        if process.defect and process.usable:
            log.info("a scoring process is replaced: %s", process.defect)
            await process.kill()
        if process.usable:
            self._idle.put_nowait(process)
        else:
            await self._remove(process)

    async def _take(self) -> ScoringProcess:
        while True:
            process = await self._next()
            if process.usable:
                return process
            await self._remove(process)  # it died while idle: no sample's fault

    async def _next(self) -> ScoringProcess:
        """Raises the error for which no process can be started."""
        if not self._idle.empty():
            return self._idle.get_nowait()  # as nearly always; waiting costs as much as a short score
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
        return getting.result()

    def _add(self, process: ScoringProcess) -> None:
        self._processes.add(process)
        self._idle.put_nowait(process)

    async def _remove(self, process: ScoringProcess) -> None:
        self._start_another()
        await process.kill()  # also one that ended by itself has pipes, and a status that asyncio has to take
        self._processes.discard(process)

    def _start_another(self) -> None:
        if self._closed:
            return
        watched(self._start(), self._break, self._starting)

    def _break(self, error: BaseException) -> None:
        """Those who wait for a scoring process get the error."""
        log.error("a scoring process was not started: %s", error, exc_info=error)
        if not self.pids and not self._broken.done():
            self._broken.set_exception(RewardError(f"no scoring process can be started: {error}"))

    async def _start(self) -> None:
        for attempt in range(1, MAX_STARTS + 1):
            try:
                self._add(await ScoringProcess.start(self._config))
                return
            except (RewardError, OSError) as error:
                log.warning("scoring process not started (%d of %d): %s", attempt, MAX_STARTS, error)
                if attempt == MAX_STARTS:
                    raise
                await asyncio.sleep(RESTART_S)
