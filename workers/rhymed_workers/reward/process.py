"""One scoring process as its pool sees it: started in a jail, asked for one scorer's verdicts at a time, ended.

Its process id is that of the jail's guard (rhymed_workers.sandbox.jail), which ends as the scoring process ended and
kills everything that the scorer started. Whatever happens inside, each item gets a `Verdict`: time-outs, crashes and
malformed answers become errors in words.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Sequence

import msgspec

from rhymed.core.config import Config
from rhymed.core.errors import RewardError, ScorerKilled
from rhymed_workers.reward.child import Answer, Item, Ready, Work
from rhymed_workers.reward.scorers.builtin import LATE_BY_RESPONSE
from rhymed_workers.reward.scorers.load import settings_of
from rhymed_workers.reward.scorers.result import FAULT, Verdict
from rhymed_workers.sandbox import linux
from rhymed_workers.sandbox.cleanup import cpu_s
from rhymed_workers.sandbox.jailed import MAX_FRAME, Jailed, ProcessEnded, spawn
from rhymed_workers.sandbox.plain import packed

log = logging.getLogger(__name__)

START_S = 120.0  # to import its scorers, on a loaded machine
MAX_STARTS = 3  # failed starts in a row after which the scorer is at fault
RESTART_S = 1.0
TOKEN_BYTES = 4  # of an answer, for each byte of a sample's tokens: the reward of each takes 15
BUSY = 0.25  # share of the second half of the time limit that a process worked: with less, the machine is at fault


class ScoringProcess(Jailed):
    """Started, asked for one scorer's verdict at a time, killed."""

    def __init__(self, process: asyncio.subprocess.Process, report: int, config: Config) -> None:
        super().__init__(process, report, config.reward)
        self._reward, self._scorers = config.reward, config.reward.all
        self._items = 0
        self.defect = ""  # why it must not get another item
        self.notes: list[str] = []  # how it is isolated, and what its scorers report about themselves
        self.warnings: list[str] = []
        self.whole: list[int] = []  # scorers that get all samples of a group in one call

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
        started = cls(*await spawn(config.reward, "rhymed_workers.reward.child"), config)
        try:
            await started._load(config, deadline_s)
        except BaseException:  # also a cancellation while an earlier error is being explained
            await started.kill()
            raise
        return started

    async def _load(self, config: Config, deadline_s: float) -> None:
        names = ", ".join(scorer.scorer for scorer in self._scorers)
        settings = settings_of(config)
        scorers, datasets = [one.scorer for one in settings], settings[0].datasets
        sections = {"reward": config.reward, "datasets": datasets, "scorers": scorers}
        named = [(one.label, one.key) for one in settings]
        try:
            async with asyncio.timeout(deadline_s):
                await self.write(packed(sections, named=named, shared=settings[0].shared()))
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
        self.warnings, self.whole = ready.warnings, ready.whole

    @property
    def fresh(self) -> bool:
        """It has scored no item yet."""
        return self._items == 0

    async def score(self, items: Sequence[Item], scorer: int) -> list[Verdict]:
        """Verdicts of the scorer with this index: of one item, or of all items of a group in one call, within
        `reward.timeout_s` for each item.

        The process is dead afterwards if it hung, crashed or the caller was cancelled: check `usable`.
        """
        self._items += len(items)
        work = Work(list(items), scorer, secrets.randbits(63))
        try:
            verdicts = await self._ask(work, self._scorers[scorer].scorer)
        except BaseException:
            await self.kill()
            raise
        return [msgspec.structs.replace(verdict, label=self._scorers[scorer].label) for verdict in verdicts]

    async def _ask(self, work: Work, name: str) -> list[Verdict]:
        began, count = time.monotonic(), len(work.items)
        limit_s, tokens = count * self._reward.timeout_s, sum(len(item.tokens) for item in work.items)
        at_half: list[float] = []
        timer = asyncio.get_running_loop().call_later(limit_s / 2, lambda: at_half.append(self._worked_s()))
        try:
            async with asyncio.timeout(limit_s):
                await self.write(msgspec.msgpack.encode(work))
                body = await self.read(TOKEN_BYTES * tokens + (count - 1) * MAX_FRAME)
                answer = msgspec.msgpack.decode(body, type=Answer)
                if answer.number != work.number or len(answer.verdicts) != count:
                    raise ProcessEnded("an answer that it was not asked for")
                for verdict, item in zip(answer.verdicts, work.items, strict=True):
                    if any(position >= max(1, len(item.tokens) // 4) for position, _ in verdict.token_rewards):
                        raise ProcessEnded("rewards of other tokens")
                self.defect = answer.defect
                return answer.verdicts
        except TimeoutError:
            worked_s = self._worked_s() - at_half[0] if at_half else 0.0
            await self.kill()
            times = f" ({count} samples x {self._reward.timeout_s:g} s)" if count > 1 else ""
            limit = f"reward.timeout_s = {limit_s:g} s{times}"
            error, late = f"{name} took longer than {limit} and was killed{self.reason()}", True
            if name in LATE_BY_RESPONSE and worked_s > BUSY * limit_s / 2:
                seconds = (time.monotonic() - began) / count
                return [Verdict(reward=0.0, notes={FAULT: error}, timeout=True, seconds=seconds)] * count
        except (ProcessEnded, msgspec.MsgspecError) as reason:
            error, late = f"{name}: the scoring process ended with {await self.explain_end(reason)}", False
        finally:
            timer.cancel()
        return [Verdict(error=error, timeout=late, seconds=(time.monotonic() - began) / count)] * count

    def _worked_s(self) -> float:
        """Processor time of all its processes so far, in seconds."""
        return cpu_s(linux.family([self.pid]))
