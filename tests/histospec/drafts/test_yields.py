"""Which tokens were accepted drafts, from how many tokens each forward made."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhymed.histospec.drafts.yields import Yields, accepted


def reported(*forwards: int) -> Yields:
    yields, length = Yields(), 0
    for made in forwards:
        length += made
        yields.add(made, length)
    return yields


def shown(yields: Yields, length: int) -> str:
    """`#` for an accepted draft."""
    return "".join(".#"[int(one)] for one in accepted(bytes(yields), length))


@pytest.mark.parametrize(
    ("forwards", "length", "mask"),
    [
        ((), 0, ""),
        ((), 3, "..."),
        ((1, 1, 1), 3, "..."),
        ((1, 4, 1, 2), 8, ".###..#."),
        ((1, 4), 4, ".###"),  # the response ended with a drafted token; the one behind it is thrown away
        ((1, 4), 3, ".##"),
        ((1, 3), 6, ".##..."),  # nobody told of the rest
    ],
)
def test_the_last_token_of_each_forward_came_without_a_draft(
    forwards: tuple[int, ...], length: int, mask: str
) -> None:
    assert shown(reported(*forwards), length) == mask


@given(forwards=st.lists(st.integers(1, 700), max_size=30))
def test_forwards_of_any_size_are_reported_exactly(forwards: list[int]) -> None:
    yields, length = reported(*forwards), sum(forwards)
    mask = accepted(bytes(yields), length)
    assert mask.sum() == length - len(forwards)
    assert np.flatnonzero(~mask).tolist() == (np.cumsum(forwards, dtype=int) - 1).tolist()
    assert (yields.tokens, sum(bytes(yields))) == (length, length)


def test_what_nobody_reported_counts_as_made_without_a_draft() -> None:
    yields = reported(1, 3)
    yields.add(3, 9)  # the two before these are not known
    assert shown(yields, 9) == ".##...##."


@pytest.mark.parametrize(
    ("before", "length", "made", "mask"),
    [
        ((1, 4, 4), 7, 2, ".###.#."),  # a whole forward is taken back
        ((1, 4, 4), 9, 2, ".###...#."),  # a part of one: of what is left of it nothing is known
        ((1, 4, 4), 5, 2, "...#."),
        ((1, 300, 20), 303, 2, "." + "#" * 299 + ".#."),
        ((1, 300), 290, 2, "." * 288 + "#."),
        ((1, 4), 2, 2, "#."),
    ],
)
def test_tokens_that_the_engine_took_back_are_taken_back(
    before: tuple[int, ...], length: int, made: int, mask: str
) -> None:
    yields = reported(*before)
    yields.add(made, length)
    assert shown(yields, length) == mask


def test_an_engine_that_cannot_count_does_no_harm() -> None:
    """It says that there are fewer tokens than it has just made."""
    yields = reported(1, 2)
    yields.add(3, 2)
    yields.add(1, 0)
    assert (yields.tokens, sum(bytes(yields)), shown(yields, 2)) == (1, 1, "..")


@given(steps=st.lists(st.tuples(st.integers(0, 600), st.integers(1, 600)), max_size=20))
def test_however_it_jumps_all_that_is_reported_last_is_right(steps: list[tuple[int, int]]) -> None:
    yields = Yields()
    for start, made in steps:
        yields.add(made, start + made)
        assert sum(bytes(yields)) == yields.tokens == start + made
        mask = accepted(bytes(yields), start + made)
        assert mask[start:-1].all()
        assert not mask[-1]
