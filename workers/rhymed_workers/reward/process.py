"""One scoring process as its pool sees it: started in a jail, asked for one verdict at a time, ended.

Its process id is that of the jail's guard (rhymed_workers.scoring.jail), which ends as the scoring process ended and
kills everything that the scorer started. Whatever happens inside, each item gets a `Verdict`: time-outs, crashes and
malformed answers become errors in words.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time

import msgspec

from rhymed.config import Config
from rhymed.errors import RewardError, ScorerKilled
from rhymed_workers.scorers.explain import hung_at
from rhymed_workers.scoring.caged import Caged, ProcessEnded, spawn
from rhymed_workers.scoring.child import Answer, Item, Ready
from rhymed_workers.scoring.verdict import Verdict

log = logging.getLogger(__name__)

START_S = 120.0  # to import its scorers, on a loaded machine
MAX_STARTS = 3  # failed starts in a row after which the scorer is at fault
RESTART_S = 1.0


class ScoringProcess(Caged):
    """Started, asked for one scorer's verdict at a time, killed."""

    def __init__(self, process: asyncio.subprocess.Process, report: int, config: Config) -> None:
        super().__init__(process, report, config.reward)
        self._reward, self._scorers = config.reward, config.reward.all
        self._items = 0
        self.defect = ""  # why it must not get another item
        self.notes: list[str] = []  # how it is isolated, and what its scorers report about themselves
        self.warnings: list[str] = []

    @classmethod
    async def start_with_retries(cls, config: Config) -> ScoringProcess:
        """Start again if something kills it while it loads. If the scorer does that, it does so every time."""
        for attempt in range(1, MAX_STARTS):
            try:
                return await cls.start(config)
            except ScorerKilled as error:
                log.warning("scoring process not started (%d of %d): %s", attempt, MAX_STARTS, error)
                await asyncio.sleep(RESTART_S)
        return await cls.start(config)

    @classmethod
    async def start(cls, config: Config, deadline_s: float = START_S) -> ScoringProcess:
        """Returns when the scorers are loaded. Raises `RewardError` when one cannot be."""
        started = cls(*await spawn(config.reward, "rhymed_workers.scoring.child"), config)
        try:
            await started._load(config, deadline_s)
        except BaseException:  # also a cancellation while an earlier error is being explained
            await started.kill()
            raise
        return started

    async def _load(self, config: Config, deadline_s: float) -> None:
        names = ", ".join(scorer.scorer for scorer in self._scorers)
        try:
            async with asyncio.timeout(deadline_s):
                await self.write(config.model_dump_json().encode())
                ready = msgspec.msgpack.decode(await self.read(), type=Ready)
        except TimeoutError:
            raise RewardError(f"scorer {names} was not loaded within {deadline_s:g} s") from None
        except (ProcessEnded, msgspec.MsgspecError) as error:
            end = await self.explain_end(error)
            kind = RewardError if self.ended_itself(error) else ScorerKilled
            raise kind(f"loading scorer {names}: the process ended with {end}") from None
        if ready.error is not None:
            raise RewardError(ready.error)
        self.notes = [self.isolation(), *ready.notes]
        self.warnings = ready.warnings

    @property
    def fresh(self) -> bool:
        """It has scored no item yet."""
        return self._items == 0

    async def score(self, item: Item, scorer: int) -> Verdict:
        """Verdict of the scorer with this index, within `reward.timeout_s`.

        The process is dead afterwards if it hung, crashed or the caller was cancelled: check `usable`.
        """
        self._items += 1
        work = msgspec.structs.replace(item, scorer=scorer, number=secrets.randbits(63))
        try:
            verdict = await self._ask(work, self._scorers[scorer].scorer)
        except BaseException:
            await self.kill()
            raise
        return msgspec.structs.replace(verdict, label=self._scorers[scorer].label)

    async def _ask(self, work: Item, name: str) -> Verdict:
        began, limit_s = time.monotonic(), self._reward.timeout_s
        try:
            async with asyncio.timeout(limit_s):
                await self.write(msgspec.msgpack.encode(work))
                answer = msgspec.msgpack.decode(await self.read(len(work.tokens)), type=Answer)
                if answer.number != work.number:
                    raise ProcessEnded("an answer that it was not asked for")
                if len(answer.verdict.token_weights) not in (0, len(work.tokens)):
                    raise ProcessEnded("weights of other tokens")
                self.defect = answer.defect
                return answer.verdict
        except TimeoutError:
            place = hung_at(await self.traceback(), name.rpartition(":")[0])
            await self.kill()
            text = f"{name} took longer than reward.timeout_s = {limit_s:g} s and was killed{place}{self.reason()}"
            error, late = text, True
        except (ProcessEnded, msgspec.MsgspecError) as reason:
            error, late = f"{name}: the scoring process ended with {await self.explain_end(reason)}", False
        return Verdict(error=error, timeout=late, seconds=time.monotonic() - began)
