"""The judges of a configuration: each scores samples, many at a time, and every sample gets one `Verdict`.

A judge runs no user code, so it needs no process of its own: while one answer is awaited others are asked for. An
answer that cannot be read is an error in words; it is counted and not kept, so that it may be asked for again.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from pathlib import Path
from typing import Self

from rhymed.config import Config
from rhymed.config.parts.judge import Judge
from rhymed.errors import DataError, RewardError, RowUnsuitable
from rhymed.inputs import render
from rhymed_workers.judging.cache import Cache
from rhymed_workers.judging.client import AskFailed, Client
from rhymed_workers.judging.reading import Unreadable, reward_of, text_of
from rhymed_workers.judging.request import address_of, body_of, read_rubric
from rhymed_workers.scoring.child import Item
from rhymed_workers.scoring.verdict import Verdict

FILE = "judge.sqlite"  # in the run's folder


class Judges:
    """By index in `reward.all`. `folder`: for the cache; None: nothing is kept.

    `patience_s`: a check's, in place of the judge's; then a judge that cannot be asked raises `RewardError`.
    """

    def __init__(self, config: Config, folder: Path | None = None, patience_s: float | None = None) -> None:
        self._config = config
        self._all: dict[int, _Asked] = {}
        caches = [judge.cache for judge in config.reward.judges]
        self._cache = Cache(folder / FILE, max(caches)) if folder and any(caches) else None
        for index, scorer in enumerate(config.reward.all):
            if scorer.judge:
                cache = self._cache if scorer.judge.cache else None
                self._all[index] = _Asked(config, index, scorer.label, scorer.judge, cache, patience_s)

    async def __aenter__(self) -> Self:
        """Raises `RewardError` for a rubric that cannot be read."""
        for judge in self._all.values():
            await asyncio.to_thread(judge.load)
        return self

    async def __aexit__(self, *_: object) -> None:
        for judge in self._all.values():
            await judge.client.close()
        if self._cache is not None:
            await self._cache.close()

    def __contains__(self, index: int) -> bool:
        return index in self._all

    async def score(self, item: Item, index: int) -> Verdict:
        return await self._all[index].score(item)

    async def score_all(self, item: Item) -> dict[int, Verdict]:
        """By all judges at the same time."""
        verdicts = await asyncio.gather(*(judge.score(item) for judge in self._all.values()))
        return dict(zip(self._all, verdicts, strict=True))

    def stats(self) -> dict[str, float]:
        """Since the start, of all judges together; empty without one."""
        judges = self._all.values()
        if not judges:
            return {}
        return {
            "reward/judge_requests": float(sum(judge.client.requests for judge in judges)),
            "reward/judge_repeats": float(sum(judge.client.repeats for judge in judges)),
            "reward/judge_cached": float(sum(judge.cached for judge in judges)),
            "reward/judge_unreadable": float(sum(judge.unreadable for judge in judges)),
        }


class _Asked:
    """One judge."""

    def __init__(
        self, config: Config, index: int, label: str, judge: Judge, cache: Cache | None, patience_s: float | None
    ) -> None:
        self._config, self._label, self._judge, self._cache = config, label, judge, cache
        self._key = f"reward.scorers[{index}].judge" if config.reward.scorers else "reward.judge"
        self._checked, self._rubric = patience_s is not None, ""
        self._asking: dict[bytes, asyncio.Future[float | Exception]] = {}
        self.client = Client(judge, patience_s)
        self.cached = self.unreadable = 0

    def load(self) -> None:
        self._rubric = read_rubric(self._judge, self._key)

    async def score(self, item: Item) -> Verdict:
        began = time.monotonic()
        name = f"judge {self._judge.model} at {address_of(self._judge)}"
        reward, error, unsuitable, late = None, None, False, False
        try:
            reward = await self._reward(item)
        except (RowUnsuitable, DataError) as problem:
            error, unsuitable = str(problem), True
        except Unreadable as problem:
            self.unreadable += 1
            error = f"{name}: {problem}"
        except AskFailed as problem:
            error, late = f"{name} {problem}", problem.late
            if self._checked:
                raise RewardError(f"{self._key}: {error}") from None
        seconds = time.monotonic() - began
        return Verdict(self._label, reward, error=error, unsuitable=unsuitable, timeout=late, seconds=seconds)

    async def _reward(self, item: Item) -> float:
        row = json.loads(item.row)
        chat = render.messages(self._config.data, "the row", row)
        body = body_of(self._judge, self._rubric, chat, item.response, row)
        key = hashlib.sha256(address_of(self._judge).encode() + b"\n" + body).digest()
        if self._cache is None:
            return reward_of(self._judge, await self._ask(key, body))
        if (other := self._asking.get(key)) is not None:  # another sample has the same response
            return self._shared(await asyncio.shield(other))
        self._asking[key] = asking = asyncio.get_running_loop().create_future()
        try:
            reward = await self._kept(self._cache, key, body)
            asking.set_result(reward)
            return reward
        except Exception as error:  # also one that nobody foresaw: those who wait must learn of it
            asking.set_result(error)
            raise
        finally:
            del self._asking[key]
            asking.cancel()  # unless it is done

    def _shared(self, result: float | Exception) -> float:
        if isinstance(result, Exception):
            raise result
        self.cached += 1
        return result

    async def _kept(self, cache: Cache, key: bytes, body: bytes) -> float:
        if (known := await cache.get(key)) is not None:
            reward = reward_of(self._judge, known)
            self.cached += 1
            return reward
        text = await self._ask(key, body)
        reward = reward_of(self._judge, text)
        cache.put(key, text)
        return reward

    async def _ask(self, key: bytes, body: bytes) -> str:
        return text_of(self._judge, await self.client.ask(body, spread=key[0] / 255))
