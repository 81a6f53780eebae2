from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhymed.core.errors import MalformedMessage, StoreDamaged
from rhymed.core.messages import SampleId, Score
from rhymed_store.codec import scoreparts
from rhymed_store.codec.records import sample_key
from tests.store.stores import OTHER, PROMPT

KEY = sample_key(SampleId(3, PROMPT, 1))


NAMES = st.text("aé√/ 1", max_size=20)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
LENGTH = 9


def packed(**fields: Any) -> bytes:
    return scoreparts.pack(KEY, Score(id=SampleId(3, PROMPT, 1), reward=1.0, **fields), LENGTH)


@given(
    st.dictionaries(NAMES, NUMBERS, max_size=5),
    st.dictionaries(st.integers(0, LENGTH - 1), NUMBERS),
)
def test_parts_are_read_as_they_were_written(parts: dict[str, float], earned: dict[int, float]) -> None:
    value = packed(parts=parts, token_rewards=sorted(earned.items()))
    assert bool(value) == bool(parts or earned), "a reward without parts takes no room"
    if value:
        read = scoreparts.unpack(KEY, value)
        assert (list(read.parts.items()), read.token_rewards) == (list(parts.items()), sorted(earned.items()))


def test_damaged_ones_and_those_of_another_sample_are_found() -> None:
    value = packed(parts={"math": 1.0}, token_rewards=[(4, 0.5)])
    for at in range(len(value)):
        with pytest.raises(StoreDamaged, match=f"sample 3/{PROMPT}/1: the parts of its reward are damaged"):
            scoreparts.unpack(KEY, value[:at] + bytes([value[at] ^ 4]) + value[at + 1 :])
    with pytest.raises(StoreDamaged, match=f"sample 3/{OTHER}/1"):
        scoreparts.unpack(sample_key(SampleId(3, OTHER, 1)), value)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"parts": {"math": float("nan")}}, "math: a finite reward expected, not nan"),
        ({"token_rewards": [(0, float("inf"))]}, "a reward of a token: a finite reward expected, not inf"),
        ({"token_rewards": [(LENGTH, 1.0)]}, "rewards of tokens [9] of its 9 response tokens"),
        ({"token_rewards": [(2, 1.0), (2, 1.0)]}, "rewards of tokens [2, 2]"),
        ({"token_rewards": [(2, 1.0), (1, 1.0)]}, "rewards of tokens [2, 1]"),
    ],
    ids=str,
)
def test_what_is_no_number_or_of_no_token_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(MalformedMessage, match=re.escape(words)):
        packed(**fields)
