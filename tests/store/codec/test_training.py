from __future__ import annotations

from array import array

import pytest

from rhymed.core.errors import StoreDamaged
from rhymed_store.codec import training
from rhymed_store.codec.training import Entry

LENGTH = 3
LOGPROBS = array("f", [-0.5, -1.0, -2.0]).tobytes()
FLOORS = array("f", [float("-inf"), -3.0, -4.0]).tobytes()


@pytest.mark.parametrize("floors", [b"", FLOORS])
def test_what_was_written_is_read_again(floors: bytes) -> None:
    entry = Entry(LOGPROBS, floors)
    assert training.unpack(training.pack(entry), LENGTH, "it") == entry


@pytest.mark.parametrize("floors", [b"", FLOORS])
def test_every_damaged_byte_is_found(floors: bytes) -> None:
    value = training.pack(Entry(LOGPROBS, floors))
    for at in range(len(value)):
        with pytest.raises(StoreDamaged, match="sample 7"):
            training.unpack(value[:at] + bytes([value[at] ^ 4]) + value[at + 1 :], LENGTH, "sample 7")
    for size in range(len(value)):
        with pytest.raises(StoreDamaged, match="sample 7"):
            training.unpack(value[:size], LENGTH, "sample 7")


@pytest.mark.parametrize("entry", [Entry(LOGPROBS[:8]), Entry(LOGPROBS, FLOORS[:4])])
def test_numbers_of_other_tokens_are_damage(entry: Entry) -> None:
    with pytest.raises(StoreDamaged, match=r"sample 7: .* of another number of tokens"):
        training.unpack(training.pack(entry), LENGTH, "sample 7")
