from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhymed.core.errors import MalformedMessage
from rhymed_workers.weights import server


def words(seed: int, count: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1 << 16, count).astype("<u2")


@given(st.integers(0, 5000), st.lists(st.integers(0, 4999), max_size=30), st.integers(0, 1000))
def test_what_is_encoded_is_what_is_restored(length: int, positions: list[int], seed: int) -> None:
    old = words(seed, length)
    new = old.copy()
    for position in positions:
        if position < length:
            new[position] ^= 1 + position % 7
    content = server.encode_changes(old.tobytes(), new.tobytes())
    if content is not None:
        assert len(content) <= new.nbytes // server.SHARE
        assert bytes(server.apply_changes(old.tobytes(), content, bytearray(new.nbytes + 8))) == new.tobytes()
    else:
        assert length < 8 * (4 + 30 * 3 + 5000 // 255), "few changes of a large slice are encoded"


def test_a_slice_of_which_one_value_in_a_hundred_changes_takes_a_sixtieth() -> None:
    old = words(1, 1 << 20)
    new = old.copy()
    new[np.random.default_rng(2).random(len(new)) < 0.01] ^= 1
    content = server.encode_changes(memoryview(old.tobytes()), memoryview(new.tobytes()))
    assert content is not None
    assert len(content) < new.nbytes / 60
    assert bytes(server.apply_changes(old.tobytes(), content, bytearray(new.nbytes + 8))) == new.tobytes()


def test_much_that_changes_is_not_encoded() -> None:
    old = words(1, 1 << 18)
    assert server.encode_changes(old.tobytes(), words(2, 1 << 18).tobytes()) is None
    half = old.copy()
    half[: len(half) // 4] ^= 1  # the sample sees it as well
    assert server.encode_changes(old.tobytes(), half.tobytes()) is None
    assert server.encode_changes(old.tobytes(), old.tobytes()[:-2]) is None
    assert server.encode_changes(b"123", b"124") is None, "an odd length"


def test_damaged_changes_are_refused() -> None:
    old = words(1, 4096)
    new = old.copy()
    new[[5, 4000]] ^= 1
    content = server.encode_changes(old.tobytes(), new.tobytes())
    assert content is not None
    for damaged in (b"", content[:3], content[:-1], content[:-2], content[:6], b"\xff\xff\xff\xff" + content[4:]):
        with pytest.raises(MalformedMessage):
            server.apply_changes(old.tobytes(), damaged, bytearray(old.nbytes))
    with pytest.raises(MalformedMessage):
        server.apply_changes(old.tobytes()[:100], content, bytearray(100))
