"""The drafter and the rank correlation against what can be counted by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhymed.core.messages import EVAL
from rhymed.records.history.prompts import count_predicted, rank_correlation
from rhymed_store.columns import ROUNDS, epochs_of, is_trained, title


def arrays(*responses: list[int]) -> list[np.ndarray]:
    return [np.asarray(response, np.uint32) for response in responses]


def test_what_was_said_before_is_predicted_from_the_first_token_on() -> None:
    text = [5, 6, 7, 5, 6, 8, 9]
    assert count_predicted(arrays(text), arrays(text)) == 7  # two tokens back 5 6 is ambiguous, three back it is not
    assert count_predicted(arrays([1, 2, 3]), arrays([4, 5, 6])) == 0
    assert count_predicted(arrays([]), arrays([4, 5])) == 0
    assert count_predicted(arrays([4]), arrays([])) == 0


def test_it_backs_off_to_shorter_matches_and_takes_the_most_frequent() -> None:
    before = arrays([1, 2, 3, 4], [9, 2, 3, 4], [8, 3, 5])
    assert count_predicted(before, arrays([7, 7, 3, 4])) == 1  # 3 -> 4 twice, 3 -> 5 once
    assert count_predicted(before, arrays([7, 8, 3, 5])) == 2  # 8 -> 3, and (8, 3) -> 5 goes before 3 -> 4


@given(st.lists(st.lists(st.integers(0, 3), max_size=8), max_size=4), st.lists(st.integers(0, 3), max_size=8))
def test_it_agrees_with_a_plain_one(before: list[list[int]], now: list[int]) -> None:
    """Where the plain one finds a tie, either may be right: bounds."""
    least = most = 0
    for position, token in enumerate(now):
        for length in (3, 2, 1):
            context = ([-1] * 3 + now)[position + 3 - length : position + 3]
            followed = [
                response[at]
                for response in before
                for at in range(len(response))
                if ([-1] * 3 + response)[at + 3 - length : at + 3] == context
            ]
            if followed:
                best = max(map(followed.count, followed))
                tied = {one for one in followed if followed.count(one) == best}
                least, most = least + (tied == {token}), most + (token in tied)
                break
    assert least <= count_predicted(arrays(*before), arrays(now)) <= most if before else True


def test_rank_correlation_is_spearmans() -> None:
    assert rank_correlation([1, 2, 3, 4], [10, 20, 30, 1000]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert rank_correlation([1, 2, 2, 4], [1, 2, 3, 4]) == pytest.approx(0.9486833)  # equal ones share their rank
    assert rank_correlation([1, 2], [1, 2]) is None
    assert rank_correlation([1, 1, 1], [1, 2, 3]) is None


def test_epochs_are_counted_over_training_steps_alone() -> None:
    numbers = epochs_of([EVAL + 4, 17, -1, 3, -2, 3, 40])
    assert numbers == {-2: -2, -1: -1, 3: 0, 17: 1, 40: 2, EVAL + 4: EVAL + 4}
    assert [title(epoch) for epoch in numbers.values()] == [
        "imported -2",
        "imported -1",
        "epoch 1",
        "epoch 2",
        "epoch 3",
        "eval v4",
    ]
    assert [title(epoch) for epoch in epochs_of([ROUNDS, ROUNDS + 1])] == ["round 1", "round 2"]
    assert [is_trained(epoch) for epoch in (-1, 0, EVAL - 1, EVAL)] == [False, True, True, False]
