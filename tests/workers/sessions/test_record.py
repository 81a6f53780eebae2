"""What a prompt continues, and which turn answers a call that was made before."""

from __future__ import annotations

import numpy as np

from rhymed_workers.sessions.record import Record, Tokens


def tokens(*values: int) -> Tokens:
    return np.array(values, np.uint32)


def test_a_prompt_continues_the_row_with_which_it_shares_most() -> None:
    record = Record()
    assert record.continued(tokens(1, 2))[:2] == (None, None)
    record.add(tokens(1, 2), tokens(3))
    after, kept, new = record.continued(tokens(1, 2, 3, 4))
    assert (after, kept, new.tolist()) == (None, None, [4]), "the turn before"
    record.add(tokens(1, 2, 3, 4), tokens(5))
    assert record.continued(tokens(1, 2, 9))[:2] == (0, 2)
    assert record.continued(tokens(1, 2, 3, 9))[:2] == (0, 3)
    assert record.continued(tokens(1, 2, 3, 4, 9))[:2] == (1, 4)
    record.add(tokens(7, 8), tokens(9))
    after, kept, new = record.continued(tokens(1, 2, 3, 4, 5, 6))
    assert (after, kept, new.tolist()) == (1, 5, [6]), "a branch goes on after another one"
    assert record.continued(tokens(6))[1] == 0
    assert record.end(0).tolist() == [1, 2, 3]
    assert record.end(1).tolist() == [1, 2, 3, 4, 5]


def test_the_same_call_has_the_same_turn_as_often_as_it_was_made() -> None:
    record = Record()
    record.add(tokens(1), tokens(2))
    record.add(tokens(1), tokens(3))
    record.add(tokens(1), tokens(4), most=1)
    assert [record.ask(tokens(1)) for _ in range(3)] == [0, 1, None]
    assert [record.ask(tokens(1), 1), record.ask(tokens(1), 1), record.ask(tokens(1), 2)] == [2, None, None]
