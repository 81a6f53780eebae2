from __future__ import annotations

from array import array

import pytest

from rhymed.core.errors import MalformedMessage, StoreDamaged
from rhymed_store.codec import training
from rhymed_store.codec.training import ONES, Entry, LossWeights

LENGTH = 3
LOGPROBS = array("f", [-0.5, -1.0, -2.0]).tobytes()
FLOORS = array("f", [float("-inf"), -3.0, -4.0]).tobytes()
TOKENS = array("f", [1.0, 0.0, 0.25]).tobytes()


@pytest.mark.parametrize("floors", [b"", FLOORS])
@pytest.mark.parametrize("weights", [ONES, LossWeights(0.5), LossWeights(1.0, TOKENS), LossWeights(0.0, TOKENS)])
def test_what_was_written_is_read_again(weights: LossWeights, floors: bytes) -> None:
    entry = Entry(LOGPROBS, floors, weights)
    assert training.unpack(training.pack(entry), LENGTH, "it") == entry


@pytest.mark.parametrize("floors", [b"", FLOORS])
def test_every_damaged_byte_is_found(floors: bytes) -> None:
    value = training.pack(Entry(LOGPROBS, floors, LossWeights(0.5, TOKENS)))
    for at in range(len(value)):
        with pytest.raises(StoreDamaged, match="sample 7"):
            training.unpack(value[:at] + bytes([value[at] ^ 4]) + value[at + 1 :], LENGTH, "sample 7")
    for size in range(len(value)):
        with pytest.raises(StoreDamaged, match="sample 7"):
            training.unpack(value[:size], LENGTH, "sample 7")


@pytest.mark.parametrize(
    "entry", [Entry(LOGPROBS[:8]), Entry(LOGPROBS, FLOORS[:4]), Entry(LOGPROBS, b"", LossWeights(1.0, TOKENS[:8]))]
)
def test_numbers_of_other_tokens_are_damage(entry: Entry) -> None:
    with pytest.raises(StoreDamaged, match=r"sample 7: .* of another number of tokens"):
        training.unpack(training.pack(entry), LENGTH, "sample 7")


@pytest.mark.parametrize(
    ("weight", "tokens", "message"),
    [
        (-1.0, b"", "finite and not negative"),
        (float("nan"), b"", "finite and not negative"),
        (1.0, array("f", [1.0, -1.0, 1.0]).tobytes(), "finite and not negative"),
        (1.0, array("f", [1.0, float("inf"), 1.0]).tobytes(), "finite and not negative"),
        (1.0, TOKENS[:8], "2 token weights for 3 response tokens"),
    ],
)
def test_what_is_no_weight_is_refused(weight: float, tokens: bytes, message: str) -> None:
    with pytest.raises(MalformedMessage, match=f"sample 7: .*{message}"):
        training.check(weight, tokens, LENGTH, "sample 7")
