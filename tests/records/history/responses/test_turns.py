"""Samples in turns, run by run: whose tokens they are, which calls a turn made, where rows begin, what cannot be."""

from __future__ import annotations

import msgspec
import numpy as np

from rhymed.core.messages import Call, Fork, SampleId, SampleInfo
from rhymed.core.text import call_text
from rhymed.records.history.responses import (
    Piece,
    fork_text,
    loose,
    pieces_of_runs,
    runs_of,
    summary,
    titled,
    unanswered,
)
from rhymed_store.browse import Response

ID = SampleId(0, "00000000000000aa", 0)
ADD, BROKEN = Call(name="add", seconds=0.004), Call(name="divide", seconds=1.25, error="division by zero")


def response(turns: list[int], calls: list[list[Call]] = [], forks: list[Fork] = []) -> Response:  # noqa: B006
    length = sum(turns)
    info = SampleInfo(
        id=ID, prompt_length=3, length=length, finish_reason="stop", versions=[(0, length)], turns=turns, forks=forks
    )
    none = np.zeros(0, np.uint32)
    return Response(info, "trained", "", np.arange(length, dtype=np.uint32), none, calls=calls)


def test_runs_alternate_and_a_turn_has_the_calls_that_it_made() -> None:
    two = response([4, 2, 3], [[ADD], []])
    assert [(run.start, run.end, run.turn, run.environment) for run in runs_of(two)] == [
        (0, 4, 0, False), (4, 6, 0, True), (6, 9, 1, False),
    ]  # fmt: skip
    assert [list(run.calls) for run in runs_of(two)] == [[ADD], [], []]
    assert [title for _, title in titled(two)] == [
        "turn 1, 4 tokens",
        "environment, 2 tokens: add 4.0 ms",
        "turn 2, 3 tokens",
    ]
    assert summary(two) == "2 turns, 1 call, 2 of its tokens from its environment"
    assert runs_of(response([])) == []
    assert summary(response([])) == ""


def test_calls_of_the_last_turn_have_no_tokens_after_them() -> None:
    ended = response([4, 2, 3], [[ADD], [BROKEN]])
    assert unanswered(ended) == [BROKEN]
    assert "2 calls (1 failed)" in summary(ended)
    assert call_text(BROKEN) == "divide 1 s, failed: division by zero"


def test_calls_that_fit_no_turn_are_counted_and_placed_nowhere() -> None:
    joined = response([4, 2, 3], [[ADD], [ADD], []])  # an answer without tokens: two turns are one run
    assert [list(run.calls) for run in runs_of(joined)] == [[], [], []]
    assert "2 calls" in summary(joined)
    assert loose(joined) == [ADD, ADD]
    assert loose(response([4, 2, 3], [[ADD], []])) == []
    forked = response([4, 2, 3], [[ADD], []], [Fork(start=4, row=0, shared=5)])
    assert (runs_of(forked)[0].calls, loose(forked)) == ((), [ADD]), "rows may interleave"


def test_a_row_begins_with_a_run_and_says_what_it_shares() -> None:
    forked = response([4, 2, 3, 1, 2], [[], [], []], [Fork(start=4, row=0, shared=5)])
    assert [fork_text(run, forked.info.forks) for run in runs_of(forked) if run.fork] == [
        "row 2 begins: after the first 5 tokens of row 1"
    ]
    assert "2 rows" in summary(forked)


def test_turns_that_do_not_fit_the_tokens_are_no_runs() -> None:
    short = response([4, 2, 3])
    wrong = short._replace(info=msgspec.structs.replace(short.info, length=10))
    assert runs_of(wrong) == []


def test_text_is_cut_where_runs_begin_and_no_character_is_split() -> None:
    def decode(arrays: list[np.ndarray]) -> list[str]:
        return [bytes(array.tolist()).decode(errors="replace") for array in arrays]

    text = "two é is"
    tokens = np.frombuffer(text.encode(), np.uint8).astype(np.uint32)
    found = pieces_of_runs(decode, tokens, None, [0, 5])  # between the two bytes of é
    assert found == [[Piece("two é", None)], [Piece(" is", None)]]
    drafted = np.zeros(len(tokens), np.bool_)
    drafted[:2] = True
    assert pieces_of_runs(decode, tokens, drafted, [0, 4]) == [
        [Piece("tw", True), Piece("o ", False)], [Piece("é is", False)],
    ]  # fmt: skip
