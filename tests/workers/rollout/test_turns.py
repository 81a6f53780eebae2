"""Which prompt, how much room and which noise the turn of a sample has."""

from __future__ import annotations

from collections.abc import AsyncIterator

import numpy as np
import pytest

from rhymed.core import messages
from rhymed.core.config import Config
from rhymed.core.messages import Answer, GiveBack, SampleId, Turn, Turned
from rhymed.core.run.layout import layout_of
from rhymed_store.client import StoreClient
from rhymed_store.service import StoreService
from rhymed_store.sessions import NewTurn, put_answer, put_turns
from rhymed_workers.engines.base import DraftReport, Output, Sampling, turn_seed
from rhymed_workers.rollout.generation import ActiveSample, _of_turn
from rhymed_workers.rollout.reports import Reporter
from rhymed_workers.rollout.turns import Sessions, slots_of
from tests.store.stores import PROMPT

ID = SampleId(0, PROMPT, 0)
SAMPLING = Sampling(1.0, 1.0, 0, 0.0, max_tokens=20, seed=5)


@pytest.fixture
async def client(config: Config) -> AsyncIterator[StoreClient]:
    where = layout_of(config)
    async with StoreService(config.store, where).running():
        client = StoreClient(where.store, "test")
        yield client
        client.close()


async def write(client: StoreClient, number: int, answer: list[int], turn: list[int] | None, **fields: int) -> None:
    await put_answer(client, ID, number, Answer(length=len(answer), **fields), answer)
    if turn is not None:
        made = Turn(length=len(turn), finish_reason="stop", versions=[(0, len(turn))])
        await put_turns(
            client, [NewTurn(ID, number, made, np.array(turn, np.uint32), np.zeros(len(turn), np.float32))]
        )


async def begun(client: StoreClient, context: int | None) -> ActiveSample:
    sample = ActiveSample(ID, 0.0)
    assert await Sessions(client, context).begin(sample)
    return sample


async def test_turns_of_tools_have_the_keys_and_the_room_that_they_had(client: StoreClient) -> None:
    await write(client, 0, [1, 2], None)
    assert _of_turn(await begun(client, None), SAMPLING) == SAMPLING
    await write(client, 0, [1, 2], [3])
    await write(client, 1, [4], None)
    sample = await begun(client, None)
    assert (sample.prompt, sample.prefix, sample.turn) == ([1, 2], [3, 4], 1)
    sampling = _of_turn(sample, SAMPLING)
    assert (sampling.max_tokens, sampling.seed) == (18, turn_seed(5, [1, 2], [3, 4]))


async def test_turns_of_programs_have_the_key_of_what_they_asked(client: StoreClient) -> None:
    await write(client, 0, [1, 2], [3], most=4)
    await write(client, 1, [4], [5])
    await write(client, 2, [], None, after=0, kept=2)
    sample = await begun(client, 10)
    assert (sample.prompt, sample.prefix, sample.repeats) == ([1, 2], [], 1)
    assert _of_turn(sample, SAMPLING).seed == turn_seed(5, [1], [2], 1) != turn_seed(5, [1, 2], [])
    assert _of_turn(sample, SAMPLING).max_tokens == 28, "prompt and response together have 30"
    await write(client, 2, [], [6], after=0, kept=2)
    await write(client, 3, [9], None, kept=0, most=7)
    sample = await begun(client, 10)
    assert (sample.prompt, sample.prefix, sample.repeats) == ([9], [], 0)
    assert _of_turn(sample, SAMPLING).max_tokens == 7


async def test_the_first_call_of_a_program_has_its_prompts_key_too(client: StoreClient) -> None:
    await write(client, 0, [1, 2], None)
    assert _of_turn(await begun(client, 10), SAMPLING).seed == turn_seed(5, [1, 2], [])


def test_a_few_samples_in_turns_wait_where_they_will_be_written() -> None:
    rollout = {"max_concurrency": 32}
    assert slots_of(Config.model_validate({"rollout": rollout})) == 32
    assert slots_of(Config.model_validate({"rollout": rollout, "environment": {"tools": "tools.py:add"}})) == 36


class Answering:
    """In place of engine and broker: no drafts, and what is reported."""

    def __init__(self) -> None:
        self.reported: list[messages.Message] = []

    async def drafting(self, ids: list[SampleId]) -> list[DraftReport]:
        return [DraftReport() for _ in ids]

    async def report(self, message: messages.Message, what: str) -> None:
        self.reported.append(message)


async def test_a_sample_whose_session_is_lost_ends_alone(client: StoreClient) -> None:
    await write(client, 0, [1, 2], None)
    other, broker = ActiveSample(SampleId(0, PROMPT, 1), 0.0), Answering()
    samples = [await begun(client, None), other]
    active = {sample.id: sample for sample in samples}
    reporter = Reporter("w", broker, client, broker, active, turns=True)  # type: ignore[arg-type]
    for sample in samples:
        sample.output = Output(np.array([3], np.uint32), np.zeros(1, np.float32), "stop", [(0, 1)])
    await reporter._store_and_report(samples)
    turned, back = sorted(broker.reported, key=lambda message: type(message).__name__, reverse=True)
    assert isinstance(turned, Turned)
    assert [info.id for info in turned.samples] == [ID]
    assert isinstance(back, GiveBack)
    assert (back.samples, back.retry) == ([other.id], False)
    assert "the store has no answer before it" in back.reason
