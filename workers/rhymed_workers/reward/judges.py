"""The judges of a configuration: each scores samples, many at a time, and every sample gets one `Verdict`.

A judge runs no user code, so it needs no process of its own: while one answer is awaited others are asked for. An
answer that cannot be read is an error in words; it is counted and not kept, so that it may be asked for again.

`Judges` asks, and `reward_of` reads an answer.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import re
import time
from typing import Any, Self

from rhymed.core.config import Config
from rhymed.core.config.reward import Judge
from rhymed.core.errors import DataError, RewardError, RowUnsuitable
from rhymed.core.text import short
from rhymed.inputs import render
from rhymed_workers.reward.child import Item
from rhymed_workers.reward.judge_client import AskFailed, Client, address_of, body_of
from rhymed_workers.reward.scorers.answer import NUMBER
from rhymed_workers.reward.scorers.result import Verdict


class Judges:
    """By index in `reward.all`. `patience_s`: a check's, in place of the judge's; then a judge that cannot be asked
    raises `RewardError`."""

    def __init__(self, config: Config, patience_s: float | None = None) -> None:
        self._all: dict[int, _Asked] = {}
        for index, scorer in enumerate(config.reward.all):
            if scorer.judge:
                self._all[index] = _Asked(config, index, scorer.label, scorer.judge, patience_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for judge in self._all.values():
            await judge.close()

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
    """One judge. The same request is made once: samples share its answer while it is awaited, and later ones too."""

    def __init__(self, config: Config, index: int, label: str, judge: Judge, patience_s: float | None) -> None:
        self._config, self._label, self._judge = config, label, judge
        self._key = f"reward.scorers[{index}].judge" if config.reward.scorers else "reward.judge"
        self._checked = patience_s is not None
        self._asking: dict[bytes, asyncio.Task[float]] = {}
        self._known: dict[bytes, float] = {}  # the oldest first
        self.client = Client(judge, patience_s)
        self.cached = self.unreadable = 0

    async def close(self) -> None:
        for asking in self._asking.values():
            asking.cancel()
        await asyncio.gather(*self._asking.values(), return_exceptions=True)
        await self.client.close()

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
        return Verdict(reward, error=error, timeout=late, seconds=seconds, label=self._label, unsuitable=unsuitable)

    async def _reward(self, item: Item) -> float:
        row = json.loads(item.row)
        chat = render.messages(self._config.data, "the row", row)
        body = body_of(self._judge, chat, item.response, row)
        key = hashlib.sha256(address_of(self._judge).encode() + b"\n" + body).digest()
        if not self._judge.cache:
            return await self._ask(key, body)
        if (known := self._known.get(key)) is not None:
            self.cached += 1
            return known
        if (asking := self._asking.get(key)) is not None:  # another sample has the same response
            self.cached += 1
        else:  # a task of its own: others may wait for it when this sample is cancelled
            asking = self._asking[key] = asyncio.create_task(self._keep(key, body))
            asking.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may wait any more
        return await asyncio.shield(asking)

    async def _keep(self, key: bytes, body: bytes) -> float:
        try:
            self._known[key] = reward = await self._ask(key, body)
        finally:
            del self._asking[key]
        if len(self._known) > self._judge.cache:
            del self._known[next(iter(self._known))]
        return reward

    async def _ask(self, key: bytes, body: bytes) -> float:
        return reward_of(self._judge, text_of(self._judge, await self.client.ask(body, spread=key[0] / 255)))


# Reads a judge's answer as a reward. An answer that has no score raises `Unreadable` in words; none becomes 0.
#
# Pure. Answers are foreign text: what is searched is bounded, and nothing in it is evaluated.

READ_CHARS = 1 << 14  # at the end of an answer, in which its score is searched
LINE_CHARS = 1 << 10
OF_MOST = re.compile(r"\s*(?:/|out of)\s*")
WORD = re.compile(r"\w+")


class Unreadable(Exception):
    """Its text is a part of a sentence: `its answer ...`."""


def text_of(judge: Judge, answer: Any) -> str:
    """What decides the score: the end of a judge's text, or a reward model's number."""
    try:
        if judge.api == "chat":
            return _written(answer["choices"][0])
        data = answer["data"][0]
        numbers = {"classify": "probs", "pooling": "data", "score": "score"}[judge.api]
        return _single(data[numbers], judge)
    except (KeyError, TypeError, IndexError, AttributeError):
        raise Unreadable(
            f"its answer is none of {judge.api!r} (api): {short(answer)}; is this the server's path?"
        ) from None


def reward_of(judge: Judge, text: str) -> float:
    """From what `text_of` returned."""
    if judge.api != "chat":
        return _scaled(judge, _finite(text))
    found = _last_match(judge, text) if judge.pattern else text.splitlines()[-1].strip()[-LINE_CHARS:]
    if judge.words:
        return _by_word(judge, found)
    return _scaled(judge, _one_number(judge, found))


def _written(choice: Any) -> str:
    text, reason = choice["message"].get("content"), choice.get("finish_reason")
    if reason == "length":
        raise Unreadable("its answer was cut at the limit of tokens: raise options.max_tokens, or ask for less")
    if not isinstance(text, str) or not text.strip():
        raise Unreadable(f"its answer is empty (finish_reason: {short(reason)})")
    return text.strip()[-READ_CHARS:]


def _single(value: Any, judge: Judge) -> str:
    while isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, list):
        raise Unreadable(
            f"it gave {len(value)} numbers (api = {judge.api!r}), and a reward is one: name another model"
        )
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Unreadable(f"it gave {short(value)} in place of a number")
    return repr(_finite(value))


def _last_match(judge: Judge, text: str) -> str:
    matches = list(re.finditer(judge.pattern, text))
    if not matches:
        raise Unreadable(f"its answer does not match pattern: {short(text[-200:])}")
    return str(matches[-1][1 if matches[-1].re.groups else 0] or "")


def _by_word(judge: Judge, text: str) -> float:
    rewards = {name.casefold(): reward for name, reward in judge.words.items()}
    whole = " ".join(text.split()).strip(" .!*_`\"'").casefold()
    if whole in rewards:
        return rewards[whole]
    found = {word for word in WORD.findall(text.casefold()) if word in rewards}
    if len(found) != 1:
        what = "none" if not found else "several"
        raise Unreadable(f"it wrote {what} of the words {', '.join(judge.words)}: {short(text)}")
    return rewards[found.pop()]


def _one_number(judge: Judge, text: str) -> float:
    """`8`, `Score: 8`, and `8/10` where 10 is the most."""
    found = list(NUMBER.finditer(text))
    if len(found) == 2 and judge.bounds and OF_MOST.fullmatch(text[found[0].end() : found[1].start()]):
        found = found[:1] if _number(found[1][0]) == judge.bounds[1] else found
    if len(found) != 1:
        raise Unreadable(f"one number is expected where its score is, and there {_are(len(found))}: {short(text)}")
    return _number(found[0][0])


def _are(count: int) -> str:
    return f"are {count}" if count else "is none"


def _number(text: str) -> float:
    return _finite(text.replace(",", "").replace("\u2212", "-"))


def _finite(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise Unreadable(f"it gave {short(value)} in place of a finite number")
    return number


def _scaled(judge: Judge, number: float) -> float:
    if judge.bounds is None:
        return number
    least, most = judge.bounds
    if not least <= number <= most:
        raise Unreadable(f"it gave {number:g}, which is not in range = [{least:g}, {most:g}]")
    return (number - least) / (most - least)
