"""Samples in turns: what the store takes, keeps and gives back, until the sample is whole and after."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from rhymed.core.errors import MalformedMessage, UnknownSample
from rhymed.core.messages import EVAL, Answer, Call, Done, Fork, PutAnswer, PutCalls, SampleId, SampleInfo, Turn
from rhymed.core.run.layout import RunLayout
from rhymed_store.browse import Browse
from rhymed_store.client import NewSample, StoreClient
from rhymed_store.service import StoreService
from rhymed_store.sessions import NewTurn, begin_calls, get_session, put_answer, put_turns
from rhymed_store.verify import verify
from tests.store.stores import PROMPT

ONE, TWO = SampleId(0, PROMPT, 0), SampleId(0, PROMPT, 1)
CALLS = [Call(name="add", seconds=0.5), Call(name="add", error="no numbers")]


def new_turn(sample: SampleId, number: int, tokens: list[int], version: int = 0, drafted: bool = True) -> NewTurn:
    turn = Turn(length=len(tokens), finish_reason="stop", versions=[(version, len(tokens))])
    logprobs = -np.arange(1, len(tokens) + 1, dtype=np.float32)
    mask = np.arange(len(tokens)) % 2 == 1 if drafted else None
    floors = 2 * logprobs if len(tokens) > 1 else None
    return NewTurn(sample, number, turn, np.array(tokens, np.uint32), logprobs, mask, floors)


async def answer(client: StoreClient, sample: SampleId, number: int, tokens: list[int], **fields: object) -> None:
    await put_answer(client, sample, number, Answer(length=len(tokens), **fields), tokens)  # type: ignore[arg-type]


async def begin(client: StoreClient, sample: SampleId = ONE) -> None:
    await answer(client, sample, 0, [7, 8, 9])
    await put_turns(client, [new_turn(sample, 0, [1, 2, 70_000])])


async def test_a_sample_goes_on_from_its_answers_and_turns(client: StoreClient) -> None:
    assert (await get_session(client, ONE)).session.acts, "its environment writes the prompt"
    await begin(client)
    await begin(client, TWO)
    await answer(client, ONE, 1, [4, 5], calls=CALLS)
    await put_turns(client, [new_turn(ONE, 1, [6], version=1, drafted=False)])
    stored = await get_session(client, ONE, logprobs=True)
    assert (stored.prompt.tolist(), stored.response.tolist()) == ([7, 8, 9], [1, 2, 70_000, 4, 5, 6])
    assert stored.session.acts
    assert not stored.session.done
    assert [turn.versions for turn in stored.session.turns] == [[(0, 3)], [(1, 1)]]
    assert stored.session.answers[1].calls == CALLS
    plain = (await get_session(client, ONE)).session.answers[1]
    assert (plain.calls, plain.reward) == ([], None), "who writes the next turn reads tokens only"
    assert stored.logprobs is not None
    assert [part.tolist() for part in stored.logprobs] == [[-1, -2, -3], [-1]]
    assert stored.drafted is not None
    assert [None if part is None else part.tolist() for part in stored.drafted] == [[False, True, False], None]
    assert stored.floors is not None
    assert [None if part is None else part.tolist() for part in stored.floors] == [[-2, -4, -6], None]
    assert (await get_session(client, TWO)).response.tolist() == [1, 2, 70_000]


async def test_the_first_record_of_a_turn_or_an_answer_stays(client: StoreClient) -> None:
    await begin(client)
    await answer(client, ONE, 0, [1])
    await put_turns(client, [new_turn(ONE, 0, [3, 3])])
    stored = await get_session(client, ONE)
    assert (stored.prompt.tolist(), stored.response.tolist()) == ([7, 8, 9], [1, 2, 70_000])


async def test_nothing_leaves_a_gap(client: StoreClient) -> None:
    with pytest.raises(UnknownSample, match="no answer before it"):
        await put_turns(client, [new_turn(ONE, 0, [1])])
    await begin(client)
    with pytest.raises(UnknownSample, match="no answer before it"):
        await put_turns(client, [new_turn(TWO, 0, [1]), new_turn(ONE, 1, [1])])
    with pytest.raises(UnknownSample, match="lacks the turn before it"):
        await answer(client, ONE, 2, [1])
    await answer(client, ONE, 1, [], done=True)
    with pytest.raises(UnknownSample, match="no answer before it"):
        await put_turns(client, [new_turn(ONE, 1, [1])])


async def test_only_the_first_attempt_begins_the_calls_of_a_turn(client: StoreClient) -> None:
    await begin(client)
    assert not (await get_session(client, ONE)).session.begun
    assert await begin_calls(client, ONE, 0, "a")
    assert await begin_calls(client, ONE, 0, "a"), "the same attempt, repeated"
    assert not await begin_calls(client, ONE, 0, "b")
    assert (await get_session(client, ONE)).session.begun
    await answer(client, ONE, 1, [5])
    await put_turns(client, [new_turn(ONE, 1, [6])])
    assert not (await get_session(client, ONE)).session.begun, "the calls of another turn"
    assert await begin_calls(client, ONE, 1, "b")


async def test_a_turn_replaces_its_beginning(client: StoreClient) -> None:
    await answer(client, ONE, 0, [7])
    await client.put_partials({ONE: (0, [1, 2])})
    await put_turns(client, [new_turn(ONE, 0, [1, 2, 3])])
    assert await client.get_partials([ONE]) == {}


async def test_the_journal_says_whose_turn_it_is(client: StoreClient) -> None:
    await begin(client, ONE)
    await answer(client, TWO, 0, [7])
    states = {entry.id: entry.state for entry in (await client.journal(0)).entries}
    assert states == {ONE: "turned", TWO: "begun"}
    await answer(client, ONE, 1, [], done=True)
    states = {entry.id: entry.state for entry in (await client.journal(0)).entries}
    assert states[ONE] == "turned", "its environment worker stores the whole sample"


def whole(sample: SampleId = ONE) -> NewSample:
    info = SampleInfo(
        id=sample, prompt_length=3, length=6, finish_reason="stop", versions=[(0, 6)], turns=[3, 2, 1], earned=0.5
    )
    return NewSample(info, [7, 8, 9], [1, 2, 70_000, 4, 5, 6], [-1, -2, -3, 0, 0, -1])


async def finish(client: StoreClient) -> None:
    await begin(client)
    await answer(client, ONE, 1, [4, 5], calls=CALLS)
    await put_turns(client, [new_turn(ONE, 1, [6])])
    await answer(client, ONE, 2, [], done=True, reward=0.5)
    await client.put_samples([whole()])


async def test_a_whole_sample_says_which_tokens_its_environment_wrote(client: StoreClient) -> None:
    await finish(client)
    await client.put_samples([NewSample(SampleInfo(id=TWO, prompt_length=3, length=1, finish_reason="stop",
                                                   versions=[(0, 1)]), [7, 8, 9], [1], [-1])])  # fmt: skip
    one, two = await client.get_samples([ONE, TWO], logprobs=True, prompt_tokens=True)
    assert (one.info.turns, one.info.earned, one.info.learned) == ([3, 2, 1], 0.5, 4)
    assert (two.info.turns, two.info.earned, two.info.learned) == ([], None, 1)
    (past, _) = await client.history(PROMPT, 1)
    assert past.info.turns == [3, 2, 1]
    row = (await client.lengths([PROMPT], 1))[PROMPT]
    assert row.lengths == [(0, 4), (0, 1)], "what the policy wrote"
    assert not (await get_session(client, ONE)).session.answers, "what was in progress is gone"
    await answer(client, ONE, 0, [1])
    session = (await get_session(client, ONE)).session
    assert (session.answers, session.stored) == ([], True), "and nothing adds to it"
    assert not (await get_session(client, SampleId(0, PROMPT, 5))).session.stored
    assert not await begin_calls(client, ONE, 1, "late"), "nor begins its calls again"


async def test_turns_of_a_checkpointed_step_are_forgotten(client: StoreClient) -> None:
    await client.put_samples([whole(SampleId(3, PROMPT, 0))])
    await begin(client)
    await client.forget_logprobs(1)
    assert {entry.id.step for entry in (await client.journal(0)).entries} == {3}


async def test_what_is_not_what_it_says_is_refused(client: StoreClient) -> None:
    turn = new_turn(ONE, 0, [1, 2])
    await answer(client, ONE, 0, [7])
    wrong = Turn(length=2, finish_reason="stop", versions=[(0, 3)])
    with pytest.raises(MalformedMessage, match="do not sum to 2"):
        await put_turns(client, [NewTurn(ONE, 0, wrong, turn.tokens, turn.logprobs)])
    question = PutAnswer(sample=ONE, number=1, answer=Answer(length=2))
    with pytest.raises(MalformedMessage, match="4 bytes, 8 announced"):
        await client.ask(question, Done, np.zeros(1, np.uint32), deadline_s=5)
    with pytest.raises(MalformedMessage, match="finite reward"):
        await answer(client, TWO, 0, [1], reward=float("nan"))
    info = SampleInfo(id=TWO, prompt_length=1, length=2, finish_reason="stop", versions=[(0, 2)], turns=[1, 2])
    with pytest.raises(MalformedMessage, match="turns"):
        await client.put_samples([NewSample(info, [1], [1, 2], [0, 0])])


@pytest.mark.parametrize("number", [1 << 30, 1 << 31, 1 << 52])
async def test_turns_that_no_sample_has_are_refused(client: StoreClient, number: int) -> None:
    with pytest.raises(MalformedMessage, match="there is no turn"):
        await put_turns(client, [new_turn(ONE, number, [1])])
    with pytest.raises(MalformedMessage, match="there is no turn"):
        await answer(client, ONE, number, [1])
    with pytest.raises(MalformedMessage, match="there is no turn"):
        await begin_calls(client, ONE, number, "a")


async def test_nothing_that_would_break_who_reads_it_is_taken(client: StoreClient) -> None:
    with pytest.raises(MalformedMessage, match="answer 0 is a prompt"):
        await answer(client, ONE, 0, [])
    with pytest.raises(MalformedMessage, match="answer 0 is a prompt"):
        await answer(client, ONE, 0, [1], done=True)
    await answer(client, ONE, 0, [7])
    with pytest.raises(MalformedMessage, match="is not complete"):
        await put_turns(client, [new_turn(ONE, 0, [])])
    aborted = Turn(length=1, finish_reason="abort", versions=[(0, 1)])
    with pytest.raises(MalformedMessage, match="is not complete"):
        await put_turns(client, [NewTurn(ONE, 0, aborted, np.ones(1, np.uint32), np.zeros(1, np.float32))])
    none = Turn(length=1, finish_reason="stop", versions=[(0, 1), (1, 0)])
    with pytest.raises(MalformedMessage, match="do not sum to 1"):
        await put_turns(client, [NewTurn(ONE, 0, none, np.ones(1, np.uint32), np.zeros(1, np.float32))])
    with pytest.raises(UnknownSample, match="has no calls: the store lacks it"):
        await begin_calls(client, ONE, 0, "early")
    await put_turns(client, [new_turn(ONE, 0, [1])])
    assert await begin_calls(client, ONE, 0, "a"), "what came too early has not begun"


async def test_calls_of_no_one_begin_nothing(client: StoreClient) -> None:
    """Of unknown prompts, of imported samples, and of steps that a checkpoint covers."""
    for sample in (SampleId(0, "00000000000000ff", 0), SampleId(7, PROMPT, 60_000)):
        with pytest.raises(UnknownSample):
            await begin_calls(client, sample, 0, "a")
    assert not await begin_calls(client, SampleId(-1, PROMPT, 0), 0, "a")
    with pytest.raises(MalformedMessage, match="index 16"):
        await client.ask(PutCalls(sample=SampleId(0, PROMPT, 1 << 20), number=0, attempt="a"), Done, deadline_s=5)


async def test_an_evaluation_goes_on_while_no_checkpoint_covers_its_version(client: StoreClient) -> None:
    sample = SampleId(EVAL + 3, PROMPT, 0)
    await client.put_samples([whole(SampleId(5, PROMPT, 0))])
    await begin(client, sample)
    await client.forget_logprobs(3)
    assert len((await get_session(client, sample)).turns) == 1
    await client.forget_logprobs(4)
    assert not (await get_session(client, sample)).turns


async def test_people_see_the_calls_and_every_entry_is_checked(
    service: StoreService, client: StoreClient, where: RunLayout
) -> None:
    await finish(client)
    await begin(client, TWO)
    await begin_calls(client, TWO, 0, "a")
    report = verify(where.database)
    assert report.sound, report.findings
    assert (report.counts["sessions"], report.counts["turns"]) == (1, 3)
    (found,) = Browse(service.database).responses(PROMPT)
    assert found.info.turns == [3, 2, 1]
    assert [list(calls) for calls in found.calls] == [CALLS, []]


async def test_an_answer_may_continue_an_earlier_turn(client: StoreClient) -> None:
    await begin(client)  # 7 8 9 | 1 2 70000
    await answer(client, ONE, 1, [4], most=9)
    await put_turns(client, [new_turn(ONE, 1, [5])])
    await answer(client, ONE, 2, [6], after=0, kept=2)
    await put_turns(client, [new_turn(ONE, 2, [10])])
    await answer(client, ONE, 3, [], after=2)
    await put_turns(client, [new_turn(ONE, 3, [11])])
    await answer(client, ONE, 4, [6], after=1, kept=2)
    stored = await get_session(client, ONE)
    prompts = [stored.before(number).tolist() for number in range(5)]
    assert prompts == [[7, 8, 9], [7, 8, 9, 1, 2, 70_000, 4], [7, 8, 6], [7, 8, 6, 10], [7, 8, 6]]
    assert [stored.repeats(number) for number in range(5)] == [0, 0, 0, 0, 1]
    assert stored.session.answers[1].most == 9
    late = await get_session(client, ONE, logprobs=True, first=3)
    assert [part.tolist() for part in (*late.answers, *late.turns)] == [[], [6], [11]]
    assert late.logprobs is not None
    assert len(late.logprobs) == 1


async def test_an_answer_keeps_only_what_is_there(client: StoreClient) -> None:
    await begin(client)
    await answer(client, ONE, 1, [4], kept=2)
    await put_turns(client, [new_turn(ONE, 1, [5, 6])])
    for wrong in ({"after": 2}, {"after": 0, "kept": 7}, {"after": 1, "kept": 6}):
        with pytest.raises(MalformedMessage, match="keeps"):
            await answer(client, ONE, 2, [1], **wrong)
    await answer(client, ONE, 2, [1], after=1, kept=5)
    with pytest.raises(MalformedMessage, match="keeps 1 tokens of turn 0"):
        await answer(client, TWO, 0, [1], after=0, kept=1)


async def test_an_answer_says_whether_it_is_the_one_that_stays(client: StoreClient) -> None:
    await begin(client)
    first = Answer(length=1, kept=3)
    assert await put_answer(client, ONE, 1, first, [4])
    assert await put_answer(client, ONE, 1, first, [4]), "repeated"
    assert not await put_answer(client, ONE, 1, first, [5])
    assert not await put_answer(client, ONE, 1, Answer(length=1), [4])


async def test_rows_of_a_sample_are_kept(client: StoreClient) -> None:
    def forked(*forks: Fork) -> NewSample:
        return replace(whole(), info=msgspec.structs.replace(whole().info, forks=list(forks)))

    for wrong in (
        Fork(start=2, row=0, shared=1),
        Fork(start=5, row=0, shared=1),
        Fork(start=3, row=1, shared=1),
        Fork(start=3, row=0, shared=7),
    ):
        with pytest.raises(MalformedMessage, match="no row 1"):
            await client.put_samples([forked(wrong)])
    for last in (1, 100):
        with pytest.raises(MalformedMessage, match=f"the policy wrote no run {last} of"):
            await client.put_samples([replace(whole(), info=msgspec.structs.replace(whole().info, last=last))])
    fork = Fork(start=3, row=0, shared=6)
    first = forked(fork)
    await client.put_samples([replace(first, info=msgspec.structs.replace(first.info, last=0))])
    (found,) = await client.get_samples([ONE])
    assert (found.info.forks, found.info.last) == ([fork], 0)
    (past,) = await client.history(PROMPT, 1)
    assert past.info.forks == [fork]
