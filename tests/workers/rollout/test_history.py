"""History is loaded once per prompt and step; nothing waits for it, and failures are logged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from rhymed.core.errors import EngineError, PeerGone
from rhymed.core.messages import SampleId, SampleInfo
from rhymed_store.client import StoredSample
from rhymed_workers.rollout import worker
from rhymed_workers.rollout.worker import HistoryLoader

PROMPT = [1, 2, 3]


def stored(step: int, prompt_length: int = len(PROMPT)) -> StoredSample:
    info = SampleInfo(
        id=SampleId(step, "a", 0), prompt_length=prompt_length, length=2, finish_reason="stop", versions=[(0, 2)]
    )
    return StoredSample(info, np.asarray([7, 8], np.uint32))


class Ends:
    """A store with `past` and an engine; `error` is raised by the store, `refusal` by the engine."""

    def __init__(self) -> None:
        self.past = [stored(1), stored(0)]
        self.error: Exception | None = None
        self.refusal: Exception | None = None
        self.asked: list[tuple[str, int]] = []
        self.remembered: list[tuple[str, Sequence[int], list[StoredSample]]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.reading = self.most = 0

    async def read(self, prompt: str, step: int) -> list[StoredSample]:
        self.asked.append((prompt, step))
        self.reading += 1
        self.most = max(self.most, self.reading)
        try:
            await self.open.wait()
        finally:
            self.reading -= 1
        if self.error:
            raise self.error
        return self.past

    async def remember(self, prompt: str, tokens: Sequence[int], past: list[StoredSample]) -> None:
        if self.refusal:
            raise self.refusal
        self.remembered.append((prompt, tokens, past))


@pytest.fixture
async def ends() -> Ends:
    return Ends()


@pytest.fixture
def loader(ends: Ends) -> Iterator[HistoryLoader]:
    loader = HistoryLoader(ends.read, ends.remember)
    yield loader
    loader.close()


async def settle() -> None:
    """All that can go on without us has."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.WARNING, worker.__name__)
    return lambda: [record.getMessage() for record in caplog.records]


async def test_history_is_brought_once_a_prompt_and_step(ends: Ends, loader: HistoryLoader, warnings: Any) -> None:
    for index in range(4):
        loader.load(SampleId(2, "a", index), PROMPT)
    loader.load(SampleId(2, "b", 0), PROMPT)
    await settle()
    loader.load(SampleId(2, "a", 5), PROMPT)
    loader.load(SampleId(3, "a", 0), PROMPT)
    await settle()
    assert ends.asked == [("a", 2), ("b", 2), ("a", 3)]
    assert ends.remembered == [("a", PROMPT, ends.past), ("b", PROMPT, ends.past), ("a", PROMPT, ends.past)]
    assert warnings() == []


async def test_what_was_brought_is_forgotten_oldest_first(
    ends: Ends, loader: HistoryLoader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "REMEMBERED", 2)
    for prompt in "abcca":
        loader.load(SampleId(0, prompt, 0), PROMPT)
    await settle()
    assert [prompt for prompt, _ in ends.asked] == ["a", "b", "c", "a"]


async def test_nobody_waits_and_few_ask_at_once(ends: Ends, loader: HistoryLoader) -> None:
    ends.open.clear()
    for number in range(20):
        loader.load(SampleId(0, str(number), 0), PROMPT)  # returns
    await settle()
    assert (ends.remembered, ends.most) == ([], worker.READERS)
    ends.open.set()
    await settle()
    assert (len(ends.remembered), ends.most) == (20, worker.READERS)


async def test_a_prompt_without_history_is_not_reported(ends: Ends, loader: HistoryLoader, warnings: Any) -> None:
    ends.past = []
    loader.load(SampleId(0, "a", 0), PROMPT)
    await settle()
    assert (ends.remembered, warnings()) == ([], [])


async def test_history_of_another_tokenizer_is_not_drafted_from(
    ends: Ends, loader: HistoryLoader, warnings: Any
) -> None:
    ends.past = [stored(1, prompt_length=9), stored(0, prompt_length=9)]
    loader.load(SampleId(2, "a", 0), PROMPT)
    await settle()
    assert ends.remembered == []
    (warning,) = warnings()
    assert warning.startswith("prompt a: 2 of 2 earlier responses were to 9 prompt tokens, now there are 3")


async def test_of_mixed_history_the_fitting_part_is_reported(
    ends: Ends, loader: HistoryLoader, warnings: Any
) -> None:
    ends.past = [fitting, _] = [stored(1), stored(-1, prompt_length=9)]
    loader.load(SampleId(2, "a", 0), PROMPT)
    await settle()
    assert ends.remembered == [("a", PROMPT, [fitting])]
    (warning,) = warnings()
    assert warning.startswith("prompt a: 1 of 2 earlier responses were to 9 prompt tokens, now there are 3")


async def test_a_store_that_goes_and_comes_is_a_word_each(ends: Ends, loader: HistoryLoader, warnings: Any) -> None:
    ends.error = PeerGone("the store went away")
    for prompt in "abc":
        loader.load(SampleId(0, prompt, 0), PROMPT)
        await settle()
    assert warnings() == ["no drafts from history while the store cannot be read: the store went away"]
    ends.error = None
    for prompt in "de":
        loader.load(SampleId(0, prompt, 0), PROMPT)
        await settle()
    assert warnings()[1:] == ["history can be read again"]
    assert [prompt for prompt, _, _ in ends.remembered] == ["d", "e"]


async def test_a_dead_engine_is_for_others_to_tell(ends: Ends, loader: HistoryLoader, warnings: Any) -> None:
    ends.refusal = EngineError("the engine died")
    loader.load(SampleId(0, "a", 0), PROMPT)
    await settle()
    assert warnings() == []


async def test_closing_ends_what_is_on_its_way(ends: Ends) -> None:
    loader = HistoryLoader(ends.read, ends.remember)
    ends.open.clear()
    loader.load(SampleId(0, "a", 0), PROMPT)
    await settle()
    loader.close()
    await settle()
    ends.open.set()
    await settle()
    assert (ends.reading, ends.remembered) == (0, [])
