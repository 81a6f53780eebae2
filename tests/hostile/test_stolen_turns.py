"""What stolen keys can do to samples in turns, and what they cannot: docs/security.md.

A real broker and store of a locked run with tools; a thief with one role's key and all messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from rhymed.core import messages
from rhymed.core.errors import MalformedMessage, NotAllowed, RhymedError, UnknownSample
from rhymed.core.messages import Answer, Call, SampleId, SampleInfo, Turn
from rhymed_store.client import NewSample
from rhymed_store.sessions import NewTurn, begin_calls, get_session, put_answer, put_turns
from tests.broker.cluster import until
from tests.hostile.locked import Locked, answer, locked_run

PROMPT = "00000000000000aa"
ONE = SampleId(0, PROMPT, 0)


@pytest.fixture
async def locked(tmp_path: Path) -> AsyncIterator[Locked]:
    async with locked_run(tmp_path, environment={"tools": "tools.py:add"}) as run:
        yield run


def new_turn(number: int, tokens: list[int], sample: SampleId = ONE) -> NewTurn:
    turn = Turn(length=len(tokens), finish_reason="stop", versions=[(0, len(tokens))])
    return NewTurn(sample, number, turn, np.array(tokens, np.uint32), np.full(len(tokens), -1.0, np.float32))


def whole(**fields: Any) -> NewSample:
    info = SampleInfo(id=ONE, prompt_length=1, length=2, finish_reason="stop", versions=[(0, 2)], **fields)
    return NewSample(info, [7], [1, 2], [-1.0, -1.0])


async def refused(work: Any) -> RhymedError:
    with pytest.raises(RhymedError) as caught:
        await work
    return caught.value


async def test_a_rollout_key_writes_turns_and_neither_answers_nor_ends(locked: Locked) -> None:
    honest, thief = locked.store("environment"), locked.store("rollout")
    await put_answer(honest, ONE, 0, Answer(length=1), [7])
    await put_turns(thief, [new_turn(0, [6, 6])])
    for work in (
        put_answer(thief, ONE, 1, Answer(length=0, done=True, reward=9.0), []),
        begin_calls(thief, ONE, 0, "a"),
        thief.put_samples([whole(turns=[2], earned=9.0)]),
        thief.put_samples([whole(turns=[2])]),
        get_session(thief, ONE, logprobs=True),
        thief.put_scores([messages.Score(id=ONE, reward=9.0)]),
    ):
        assert isinstance(await refused(work), NotAllowed)
    await put_answer(honest, ONE, 1, Answer(length=1, reward=0.5, calls=[Call(name="add", error="a secret")]), [8])
    seen = await get_session(thief, ONE)
    assert (seen.response.tolist(), seen.session.answers[1]) == ([6, 6, 8], Answer(length=1))


async def test_a_rollout_key_changes_no_turn_that_there_is(locked: Locked) -> None:
    honest, thief = locked.store("rollout"), locked.store("rollout")
    await put_answer(locked.store("environment"), ONE, 0, Answer(length=1), [7])
    await put_turns(honest, [new_turn(0, [1, 2])])
    await put_turns(thief, [new_turn(0, [6])])
    assert (await get_session(honest, ONE)).response.tolist() == [1, 2]
    assert isinstance(await refused(put_turns(thief, [new_turn(1, [6])])), UnknownSample)
    assert isinstance(await refused(put_turns(thief, [new_turn(1 << 40, [6])])), MalformedMessage)


async def test_a_rollout_key_can_end_a_sample_as_one_response_which_earned_nothing(locked: Locked) -> None:
    """Before its environment worker has begun it; the environment's reward stays out of reach."""
    thief, two = locked.store("rollout"), SampleId(0, PROMPT, 1)
    await put_answer(locked.store("environment"), two, 0, Answer(length=1), [7])
    begun = NewSample(msgspec.structs.replace(whole().info, id=two), [7], [1, 2], [-1.0, -1.0])
    assert "is written in turns" in str(await refused(thief.put_samples([begun])))
    await thief.put_samples([whole()])
    assert (await get_session(locked.store("environment"), ONE)).session.stored
    (found,) = await locked.store("reward").get_samples([ONE])
    assert (found.info.turns, found.info.earned) == ([], None)


async def test_an_environment_key_can_write_answers_and_rewards_but_not_over_those_there_are(locked: Locked) -> None:
    honest, thief = locked.store("environment"), locked.store("environment")
    await put_answer(honest, ONE, 0, Answer(length=1), [7])
    assert not await put_answer(thief, ONE, 0, Answer(length=1), [6])
    await put_turns(locked.store("rollout"), [new_turn(0, [1, 2])])
    assert await put_answer(thief, ONE, 1, Answer(length=1, reward=9.0), [6])
    assert not await put_answer(honest, ONE, 1, Answer(length=1, reward=0.5), [8])
    stored = await get_session(honest, ONE, logprobs=True)
    assert (stored.answers[1].tolist(), stored.session.answers[1].reward) == ([6], 9.0)
    assert isinstance(await refused(put_turns(thief, [new_turn(1, [1])])), NotAllowed)
    assert isinstance(await refused(thief.put_scores([messages.Score(id=ONE, reward=9.0)])), NotAllowed)
    assert isinstance(await refused(thief.put_partials({ONE: (0, [1])})), NotAllowed)


async def test_an_environment_key_can_keep_calls_from_being_made(locked: Locked) -> None:
    """It says that they have begun; then the policy reads that they were interrupted."""
    honest, thief = locked.store("environment"), locked.store("environment")
    await put_answer(honest, ONE, 0, Answer(length=1), [7])
    assert isinstance(await refused(begin_calls(thief, ONE, 0, "thief")), UnknownSample), "there is no turn yet"
    await put_turns(locked.store("rollout"), [new_turn(0, [1, 2])])
    assert await begin_calls(thief, ONE, 0, "thief")
    assert not await begin_calls(honest, ONE, 0, "honest")


async def test_no_key_moves_a_sample_in_turns_that_another_worker_holds(locked: Locked) -> None:
    await answer(locked.link("trainer", accepts=messages.ToTrainer), _join("trainer", "trainer"))
    await answer(locked.link("environment", accepts=messages.ToEnvironment), _join("environment", "environment-0"))
    ledger = locked.broker.ledger
    await until(lambda: len(ledger.samples.queues["acting"]) == 8, "the environment worker has work")
    held = [sample.id for sample in ledger.samples.queues["acting"]]
    infos = [SampleInfo(id=id, prompt_length=1, length=2, finish_reason="stop", versions=[(0, 2)]) for id in held]
    for role in ("rollout", "environment", "reward"):
        thief, name = locked.link(role), f"{role}-9"
        assert isinstance(await answer(thief, _join(role, name, slots=0)), messages.Welcome)
        for report in (
            messages.Generated(worker=name, samples=infos),
            messages.Turned(worker=name, samples=infos),
            messages.Answered(worker=name, samples=held),
            messages.GiveBack(worker=name, samples=held, reason="no", retry=False),
            messages.Heartbeat(worker=name, holding=[messages.Holding(id=id) for id in held]),
        ):
            assert isinstance(await answer(thief, report), messages.Done | NotAllowed)
    assert {ledger.samples.get(id).worker for id in held} == {"environment-0"}
    assert {ledger.samples.get(id).state for id in held} == {"acting"}


def _join(role: Any, name: str, slots: int = 16) -> messages.Join:
    return messages.Join(role=role, worker=name, host="h", pid=1, slots=slots, version=0 if role == "trainer" else -1)


async def test_without_an_environment_worker_the_run_says_that_it_waits_for_one(
    locked: Locked, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rhymed_broker.status import snapshot

    monkeypatch.setattr(snapshot, "START_S", 0.0)
    monkeypatch.setattr(snapshot, "PATIENCE_S", 0.0)
    await answer(locked.link("trainer", accepts=messages.ToTrainer), _join("trainer", "trainer"))
    await until(lambda: locked.broker.ledger.samples.queues["turned"], "samples wait")
    viewer = locked.link("viewer")

    async def reported() -> list[str]:
        queues: Any = await answer(viewer, messages.GetQueues())
        return list(queues.troubles)

    async with asyncio.timeout(60):
        while (
            "no environment worker is here: 8 samples wait to be answered by their environment"
            not in await reported()
        ):
            await asyncio.sleep(0.05)
