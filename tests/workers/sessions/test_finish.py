"""Turns become the rows of one sample: what is the policy's once, and what rows share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np

from rhymed.core.messages import Answer, Fork, SampleId, SampleInfo, Session, Turn
from rhymed_store.client import NewSample
from rhymed_store.sessions import StoredSession
from rhymed_workers.sessions.finish import joined

ID = SampleId(0, "p", 0)


def stored(turns: Sequence[tuple[list[int], list[int]]], unused: Sequence[int] = ()) -> StoredSession:
    """`turns`: (all tokens before it, its tokens); turn n has the version n, the log-prob -n - 1 and, if n is odd,
    ten times that as the floor."""
    answers = [Answer(length=len(turns[0][0]))]
    answers += [Answer(length=len(before), kept=0) for before, _ in turns[1:]]
    answers += [Answer(length=0, done=True, reward=0.5, unused=list(unused))]
    made = [
        Turn(length=len(tokens), finish_reason="stop", versions=[(number, len(tokens))])
        for number, (_, tokens) in enumerate(turns)
    ]
    floored = [number % 2 == 1 for number in range(len(turns))]
    logprobs = [np.full(len(tokens), -number - 1, np.float32) for number, (_, tokens) in enumerate(turns)]
    return StoredSession(
        Session(id=ID, answers=answers, turns=made, drafted=[True] * len(turns), floored=floored),
        [*(np.array(before, np.uint32) for before, _ in turns), np.zeros(0, np.uint32)],
        [np.array(tokens, np.uint32) for _, tokens in turns],
        logprobs,
        [np.ones(len(tokens), np.bool_) for _, tokens in turns],
        [10 * part if has else None for part, has in zip(logprobs, floored, strict=True)],
    )


def test_each_turn_has_what_the_answer_to_it_gave() -> None:
    whole = list(range(10))
    given = stored([(whole[1:3], [3]), (whole[1:5], [5, 6]), (whole[1:7], [7]), (whole[1:9], [9])])
    answers = [msgspec.structs.replace(one, reward=2.0**number) for number, one in enumerate(given.session.answers)]
    for unused, expected in (([], [1.0 + 2, 4.0 + 8, 16.0]), ([0], [1.0 + 2 + 4 + 8, 16.0]), ([3], [1.0 + 2, 28.0])):
        ended = [*answers[:-1], msgspec.structs.replace(answers[-1], unused=unused)]
        session = msgspec.structs.replace(given.session, answers=ended)
        info = joined(replace(given, session=session)).info
        assert (info.turn_rewards, info.earned) == (expected, 31.0), unused  # the third turn continues the second
        assert len(info.turn_rewards) == info.turn_count
    silent = [msgspec.structs.replace(one, reward=None) for one in answers]
    info = joined(replace(given, session=msgspec.structs.replace(given.session, answers=silent))).info
    assert (info.turn_rewards, info.earned) == ([], None)
    branches = joined(stored([([1, 2], [3]), ([1, 9], [5])])).info
    assert (branches.turn_rewards, branches.earned) == ([], 0.5), "of rows it is not known which one earned it"


def rows_of(sample: NewSample) -> list[list[int]]:
    """As the contract of `Fork` says."""
    prompt, tokens, info = list(sample.prompt_tokens), np.asarray(sample.tokens).tolist(), sample.info
    starts = [fork.start for fork in info.forks]
    parts = [tokens[start:end] for start, end in zip([0, *starts], [*starts, len(tokens)], strict=True)]
    rows = [[*map(int, prompt), *parts[0]]]
    for fork, part in zip(info.forks, parts[1:], strict=True):
        rows.append([*rows[fork.row][: fork.shared], *part])
    return rows


def policy_of(sample: NewSample) -> list[int]:
    info, tokens = sample.info, np.asarray(sample.tokens)
    mask = np.repeat(np.arange(len(info.turns)) % 2 == 0, info.turns)
    assert (np.asarray(sample.logprobs)[~mask] == 0).all()
    assert not np.asarray(sample.drafted)[~mask].any()
    if sample.floors is not None:
        logprobs = np.asarray(sample.logprobs)
        np.testing.assert_array_equal(sample.floors, np.where(mask & (logprobs % 2 == 0), 10 * logprobs, -np.inf))
    return tokens[mask].tolist()


def check(info: SampleInfo) -> None:
    assert sum(info.turns) == info.length
    assert sum(count for _, count in info.versions) == info.length
    assert 0 not in info.turns[1:]


def test_turns_that_continue_each_other_are_one_row() -> None:
    sample = joined(stored([([1, 2], [3]), ([1, 2, 3, 4], [5, 6])]))
    assert rows_of(sample) == [[1, 2, 3, 4, 5, 6]]
    assert (sample.info.turns, sample.info.forks, sample.info.versions) == ([1, 1, 2], [], [(0, 2), (1, 2)])
    assert sample.info.earned == 0.5


def test_a_rewritten_conversation_shares_what_it_has_in_common() -> None:
    sample = joined(stored([([1, 2], [3]), ([1, 2, 3, 4], [5]), ([1, 2, 3, 9], [6]), ([7], [8])]))
    check(sample.info)
    assert rows_of(sample) == [[1, 2, 3, 4, 5], [1, 2, 3, 9, 6], [7, 8]]
    assert sample.info.forks == [Fork(start=3, row=0, shared=3), Fork(start=5, row=0, shared=0)]
    assert policy_of(sample) == [3, 5, 6, 8]


def test_branches_may_go_on_by_turns() -> None:
    sample = joined(stored([([1], [2]), ([1, 9], [3]), ([1, 2, 4], [5]), ([1, 9, 3, 4], [6]), ([1, 9, 3, 7], [8])]))
    check(sample.info)
    assert rows_of(sample) == [[1, 2, 4, 5], [1, 9, 3, 4, 6], [1, 9, 3, 7, 8]]
    assert sample.info.forks[1] == Fork(start=7, row=1, shared=3)
    assert policy_of(sample) == [2, 5, 3, 6, 8]
    assert sample.info.versions == [(0, 2), (2, 2), (1, 2), (3, 2), (4, 1)]


def test_what_the_policy_wrote_last_may_be_in_an_earlier_row() -> None:
    turns = [([1], [2]), ([9], [3]), ([9, 3, 8], [4]), ([1, 2, 5], [6, 7])]
    info = joined(stored(turns)).info
    check(info)
    assert (info.turns, info.forks, info.last) == ([1, 1, 2, 1, 1, 1, 1], [Fork(start=4, row=0, shared=0)], 2)
    assert joined(stored(turns[:3])).info.last is None
    assert joined(stored(turns, unused=[3])).info.last is None


def test_the_same_prompt_again_is_another_row_that_begins_with_a_token_of_the_prompt() -> None:
    sample = joined(stored([([1, 2], [3]), ([1, 2], [4]), ([1, 2], [3])]))
    check(sample.info)
    assert rows_of(sample) == [[1, 2, 3], [1, 2, 4], [1, 2, 3]]
    assert policy_of(sample) == [3, 4, 3]
    assert sample.info.forks[0] == Fork(start=1, row=0, shared=1)


def test_a_turn_that_goes_on_without_a_word_between_is_the_same_run() -> None:
    sample = joined(stored([([1], [2]), ([1, 2], [3])]))
    assert sample.info.turns == [2]
    assert policy_of(sample) == [2, 3]


def test_turns_of_a_lost_attempt_are_left_out() -> None:
    sample = joined(stored([([1], [2]), ([1, 2, 3], [4]), ([1, 2, 5], [6])], unused=[1]))
    assert rows_of(sample) == [[1, 2, 5, 6]]
    other = joined(stored([([1], [2]), ([3], [4])], unused=[0]))
    assert (rows_of(other), other.info.prompt_length) == ([[3, 4]], 1)


def test_a_turn_that_is_as_long_as_its_program_asked_for_is_whole() -> None:
    def reason(most: int | None, turn: str, *, cut: bool = False) -> str:
        one = stored([([1], [2]), ([1, 2, 3], [4, 5])])
        session = one.session
        session.answers[1:] = [msgspec.structs.replace(answer, cut=cut, most=most) for answer in session.answers[1:]]
        session.turns[1] = msgspec.structs.replace(session.turns[1], finish_reason=turn)
        return joined(one).info.finish_reason

    assert reason(None, "stop") == "stop"
    assert reason(None, "length") == "length"
    assert reason(7, "length") == "length", "it met the limit of the row first"
    assert reason(2, "length") == "stop"
    assert reason(2, "length", cut=True) == "length"
