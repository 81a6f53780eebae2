"""Turns are replayed as an engine makes them: answers are read, never drafted, and a draft ends with its turn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.agents.replay import Ngram, replay, turns_of
from benchmarks.replay import LONGEST, IndexDrafter
from benchmarks.traces import Response, Trace

PROMPT = np.arange(100, 110, dtype=np.int32)


class Oracle:
    """Drafts what comes next, answers and further turns included; keeps what it was told."""

    build_s = draft_s = 0.0

    def __init__(self, responses: list[Response]) -> None:
        self.reported: list[list[int]] = [[] for _ in responses]
        self._responses = responses

    def start(self, row: int) -> None: ...

    def propose(self, rows: Any, fresh: Any, offsets: Any) -> tuple[Any, Any, Any]:
        tokens, lengths = np.full((len(rows), LONGEST), -1, np.int32), np.zeros(len(rows), np.int32)
        for place, row in enumerate(rows.tolist()):
            self.reported[row] += fresh[offsets[place] : offsets[place + 1]].tolist()
            ahead = self._responses[row].tokens[len(self.reported[row]) :][:LONGEST]
            tokens[place, : len(ahead)], lengths[place] = ahead, len(ahead)
        return tokens, lengths, np.ones((len(rows), LONGEST), np.float32)

    def observe(self, verified: Any, accepted: Any) -> None: ...

    def nbytes(self) -> int:
        return 0


def response(tokens: list[int], sample: int = 0, epoch: int = 1) -> Response:
    return Response(0, epoch, sample, 1.0, np.array(tokens, np.int32))


def test_runs_of_the_policy_are_turns() -> None:
    assert turns_of(np.array([1, 1, 0, 0, 1, 0], bool)) == [(0, 2), (4, 5)]


def test_the_first_token_of_a_turn_costs_a_pass_and_a_perfect_draft_one_more() -> None:
    given = [response(list(range(9)), number) for number in range(3)]
    masks = [np.array([1, 1, 1, 0, 0, 1, 1, 1, 0], bool)] * 3
    drafter = Oracle(given)
    found = replay(drafter, given, masks, batch=2)
    assert {turn: (passes.forwards, passes.generated) for turn, passes in found.items()} == {0: (6, 9), 1: (6, 9)}
    assert drafter.reported == [list(range(6))] * 3  # the answer came with the first token of the turn after it
    assert found[0].verified == 3 * 8


def test_prompt_lookup_continues_the_first_earlier_place() -> None:
    drafter = Ngram([np.array([1, 2, 3, 4, 9, 2, 3, 7], np.int32)], [response([])])
    rows, none = np.array([0], np.int32), np.zeros(0, np.int32)
    assert drafter.propose(rows, none, np.array([0, 0]))[1].tolist() == [0]
    tokens, lengths, _ = drafter.propose(rows, np.array([2, 3], np.int32), np.array([0, 2]))
    assert tokens[0, : lengths[0]].tolist() == [4, 9, 2, 3, 7, 2, 3]


@pytest.mark.parametrize("name", ["history", "ngram"])
def test_a_repeated_sample_is_drafted_from_what_was_said_before(name: str) -> None:
    tokens = [*range(200, 240), 5, 6, 7, *range(300, 340)]
    trace = Trace([PROMPT], [response(tokens, 0, 1), response(tokens, 0, 2)])
    mask = np.array([True] * 40 + [False] * 3 + [True] * 40)
    last = trace.of(2)
    drafter: Any = IndexDrafter(trace, last, 2) if name == "history" else Ngram([PROMPT], last)
    found = replay(drafter, last, [mask])
    assert (found[1].per_forward > 3) == (name == "history")
    assert found[0].generated == found[1].generated == 40
