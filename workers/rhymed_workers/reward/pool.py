"""A pool of scoring processes.

A scorer runs user code and symbolic algebra on model output: it may hang, crash, print, exit, fork or exhaust memory.
So each runs in a process of its own (rhymed_workers.reward.process), which is killed, with all that it started, at
`reward.timeout_s`. A process that died or has a defect is replaced, and one spare is kept ready, since importing a
scorer takes seconds. Every item ends in exactly one `Outcome`, and no item harms another: if a process dies that had
scored earlier items, which may have caused it, the item is tried again in a fresh process. What kills a fresh process
may be the kernel or a person: the item is at fault after `KILLS` of them. A scorer that compares
responses (`whole`) gets those of a group in one call. If that call fails, all of them fail, unless the call was
rhymed's choice (`reward.call = "auto"`): then only those fail that also fail alone. Judges (`judges.py`) are
asked after the other scorers, without a process; if all are judges, there is none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from rhymed.core.config import Config
from rhymed.core.errors import RewardError
from rhymed.core.run.edited import compare
from rhymed.core.tasks import watched
from rhymed_workers.reward.child import Item
from rhymed_workers.reward.judges import Judges
from rhymed_workers.reward.outcome import Outcome, combine
from rhymed_workers.reward.process import MAX_STARTS, RESTART_S, ScoringProcess
from rhymed_workers.reward.scorers.result import Verdict

log = logging.getLogger(__name__)

KILLS = 3  # fresh processes killed in a row while they scored an item


class Pool:
    """`async with Pool(config) as pool: outcome = await pool.score(item(text, row))`."""

    def __init__(self, config: Config, folder: Path | None = None) -> None:
        """`folder`: of the run, to compare files with their content at its start; None: it has none."""
        self._config, self._folder = config, folder  # the scoring processes receive all of the configuration
        self._scorers = config.reward.all
        self.judges = Judges(config)
        self._jailed = [index for index in range(len(self._scorers)) if index not in self.judges]
        self.whole: list[int] = []  # the scorers that get all samples of a group in one call
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
            if self._jailed:
                await self._start_first()
            # The files of scorers and judges, now that they were read, with their content at the start of the run.
            await asyncio.to_thread(compare, self._folder, self._config, "reward", RewardError)
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
        self.whole = first.whole
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
        (outcome,) = await self.score_group([item])
        return outcome

    async def score_group(self, items: Sequence[Item]) -> list[Outcome]:
        """Outcomes of all samples of a group, or of one; the scorers that get the whole group in one call come
        first."""
        found: list[dict[int, Verdict]] = [{} for _ in items]
        if self.whole:
            for own, verdicts in zip(found, await self._score_in_jail(items, self.whole), strict=True):
                own |= verdicts
        return list(await asyncio.gather(*map(self._complete, items, found)))

    async def _complete(self, item: Item, verdicts: dict[int, Verdict]) -> Outcome:
        """`verdicts`: of the scorers that had the whole group."""
        rest = [index for index in self._jailed if index not in self.whole]
        if rest and _fine(verdicts):
            (own,) = await self._score_in_jail([item], rest)
            verdicts |= own
        if _fine(verdicts):
            verdicts |= await self.judges.score_all(item)
        return combine(self._scorers, [verdicts[index] for index in sorted(verdicts)])

    async def _score_in_jail(self, items: Sequence[Item], scorers: Sequence[int]) -> list[dict[int, Verdict]]:
        """Verdicts of each item, by index of the scorer. It ends with a scorer that fails for all."""
        found: list[dict[int, Verdict]] = [{} for _ in items]
        async with self._slots:
            place = _Place(self, await self._take())
            try:
                for scorer in scorers:
                    for own, verdict in zip(found, await self._ask(place, items, scorer), strict=True):
                        own[scorer] = verdict
                    if not any(map(_fine, found)):
                        break
                return found
            finally:
                await self._give_back(place.process)

    async def _ask(self, place: _Place, items: Sequence[Item], scorer: int) -> list[Verdict]:
        """Of an automatic group call that fails, the items that fail alone are left out, and the others called
        again."""
        verdicts = await place.score(items, scorer)
        failed = all(verdict.error is not None for verdict in verdicts)
        if len(items) == 1 or self._config.reward.call != "auto" or not failed or verdicts[0].of_row:
            return verdicts
        alone = [verdict for item in items for verdict in await place.score([item], scorer)]
        rest = [index for index, verdict in enumerate(alone) if verdict.error is None]
        if len(rest) in (0, len(items)):  # no item is the cause, or it cannot score one alone
            return verdicts
        log.info("a group's call failed because of %d of its %d samples", len(items) - len(rest), len(items))
        if len(rest) > 1:
            for index, verdict in zip(rest, await place.score([items[index] for index in rest], scorer), strict=True):
                alone[index] = verdict
        return alone

    async def replace(self, dead: ScoringProcess) -> ScoringProcess:
        """A fresh process in place of the dead one; the dead one if none can be started."""
        if self._closed:
            return dead
        try:
            process = await self._another()
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
                self._add(await self._another())
                return
            except (RewardError, OSError) as error:
                log.warning("scoring process not started (%d of %d): %s", attempt, MAX_STARTS, error)
                if attempt == MAX_STARTS:
                    raise
                await asyncio.sleep(RESTART_S)

    async def _another(self) -> ScoringProcess:
        """Raises `RewardError` also for a scorer that was edited since the run was started."""
        process = await ScoringProcess.start(self._config)
        return await process.unedited(self._folder, self._config, "reward", RewardError)


class _Place:
    """A scoring process for one piece of work. A fresh one takes its place when it has died."""

    def __init__(self, pool: Pool, process: ScoringProcess) -> None:
        self._pool, self.process = pool, process
        self._fresh = process.fresh  # it has scored no other items
        self._last: Sequence[Item] = ()

    async def score(self, items: Sequence[Item], scorer: int) -> list[Verdict]:
        if not self.process.usable:
            await self._replace()
        self._fresh = self._fresh and self._last in ((), items)
        self._last = items
        verdicts = await self.process.score(items, scorer)
        kills = 0
        while not (self.process.usable or verdicts[0].timeout):
            kills += self._fresh and self.process.killed
            if self._fresh and not 0 < kills < KILLS:
                break
            await self._replace()
            if not self.process.usable:
                break
            verdicts = await self.process.score(items, scorer)
        return verdicts

    async def _replace(self) -> None:
        self.process = await self._pool.replace(self.process)
        self._fresh, self._last = True, ()


def _fine(verdicts: Mapping[int, Verdict]) -> bool:
    """Whether no scorer has failed."""
    return all(verdict.error is None for verdict in verdicts.values())
