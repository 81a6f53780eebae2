"""What training computed of each token, at rest."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rhymed.core.errors import StoreDamaged
from rhymed.core.messages import SampleId
from rhymed_store.codec import tokenstats
from rhymed_store.codec.records import journal_key
from tests.store.stores import OTHER, PROMPT

KEY = journal_key(SampleId(3, PROMPT, 1))
floats = st.floats(width=32, allow_nan=True, allow_infinity=True)


@given(st.lists(st.tuples(floats, floats, floats, floats), max_size=50), st.integers(-(2**31), 2**31 - 1))
def test_numbers_are_read_as_they_were_written_within_the_stated_error(
    tokens: list[tuple[float, ...]], version: int
) -> None:
    given = np.array(tokens, np.float32).reshape(-1, 4).T
    halves = tokenstats.halves(given)
    read = tokenstats.unpack(KEY, tokenstats.pack(KEY, version, halves.tobytes(), 1), "it")
    assert read.version == version
    np.testing.assert_array_equal(read.values, halves)
    expected = np.clip(given.astype(np.float64), -tokenstats.MOST, tokenstats.MOST)
    np.testing.assert_allclose(read.values.astype(np.float64), expected, rtol=2**-11, atol=3e-8)
    assert list(read.named()) == ["logprob", "entropy", "mismatch", "advantage"]


def numbers(length: int, seed: int = 0) -> NDArray[np.float16]:
    rng = np.random.default_rng(seed)
    logprobs, entropies = -rng.exponential(0.4, length), rng.exponential(0.5, length)
    return tokenstats.halves([logprobs, entropies, rng.normal(0, 1e-3, length), np.full(length, 0.7)])


def test_a_token_takes_about_six_bytes() -> None:
    assert len(tokenstats.pack(KEY, 0, numbers(4000).tobytes(), 1)) < 6 * 4000


def test_damaged_ones_and_those_of_another_sample_are_found() -> None:
    value = tokenstats.pack(KEY, 3, numbers(9).tobytes(), 1)
    for at in range(len(value)):
        with pytest.raises(StoreDamaged, match="sample 7: the numbers of its training are damaged"):
            tokenstats.unpack(KEY, value[:at] + bytes([value[at] ^ 4]) + value[at + 1 :], "sample 7")
    for size in range(len(value)):
        with pytest.raises(StoreDamaged, match="sample 7"):
            tokenstats.unpack(KEY, value[:size], "sample 7")
    with pytest.raises(StoreDamaged, match="sample 8"):
        tokenstats.unpack(journal_key(SampleId(3, OTHER, 1)), value, "sample 8")
