from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhymed.errors import MalformedMessage, StoreDamaged
from rhymed.messages import SampleId
from rhymed_store.codec import scoreparts
from rhymed_store.codec.records import sample_key
from tests.store.stores import OTHER, PROMPT

KEY = sample_key(SampleId(3, PROMPT, 1))


@given(st.dictionaries(st.text(max_size=20), st.floats(allow_nan=False, allow_infinity=False), max_size=5))
def test_parts_are_read_as_they_were_written(parts: dict[str, float]) -> None:
    read = scoreparts.unpack(KEY, scoreparts.pack(KEY, parts))
    assert list(read.items()) == list(parts.items())


def test_damaged_ones_and_those_of_another_sample_are_found() -> None:
    value = scoreparts.pack(KEY, {"math": 1.0})
    for at in range(len(value)):
        with pytest.raises(StoreDamaged, match=f"sample 3/{PROMPT}/1: the parts of its reward are damaged"):
            scoreparts.unpack(KEY, value[:at] + bytes([value[at] ^ 4]) + value[at + 1 :])
    with pytest.raises(StoreDamaged, match=f"sample 3/{OTHER}/1"):
        scoreparts.unpack(sample_key(SampleId(3, OTHER, 1)), value)


def test_a_part_that_is_no_number_is_refused() -> None:
    with pytest.raises(MalformedMessage, match="math: a finite reward expected, not nan"):
        scoreparts.pack(KEY, {"math": float("nan")})
