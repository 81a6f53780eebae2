from __future__ import annotations

from array import array

import pytest

from rhymed.core.errors import MalformedMessage, StoreDamaged
from rhymed_store.codec import lossweights, records
from rhymed_store.codec.lossweights import ONES, LossWeights

LENGTH = 3
LOGPROBS = array("f", [-0.5, -1.0, -2.0]).tobytes()
FLOORS = array("f", [float("-inf"), -3.0, -4.0]).tobytes()
TOKENS = array("f", [1.0, 0.0, 0.25]).tobytes()


@pytest.mark.parametrize("floors", [b"", FLOORS])
@pytest.mark.parametrize("weights", [ONES, LossWeights(0.5), LossWeights(1.0, TOKENS), LossWeights(0.0, TOKENS)])
def test_weights_follow_the_log_probs_and_are_read_again(weights: LossWeights, floors: bytes) -> None:
    plain = records.pack_logprobs(LOGPROBS + floors, floors=bool(floors))
    entry = plain + lossweights.pack(weights)
    assert bytes(records.unpack_logprobs(entry, LENGTH, "it")) == LOGPROBS + floors
    assert records.has_floors(entry) == bool(floors)
    assert lossweights.unpack(entry, LENGTH, "it") == weights
    assert lossweights.tokens_of(entry) == LENGTH
    assert lossweights.without(entry, LENGTH) == plain


def test_weights_of_one_take_no_bytes() -> None:
    assert lossweights.pack(ONES) == b""


def read(entry: bytes) -> LossWeights:
    records.unpack_logprobs(entry, LENGTH, "sample 7")
    return lossweights.unpack(entry, LENGTH, "sample 7")


@pytest.mark.parametrize("floors", [b"", FLOORS])
def test_every_damaged_byte_is_found(floors: bytes) -> None:
    logprobs = records.pack_logprobs(LOGPROBS + floors, floors=bool(floors))
    entry = logprobs + lossweights.pack(LossWeights(0.5, TOKENS))
    for at in range(len(entry)):
        with pytest.raises(StoreDamaged, match="sample 7"):
            read(entry[:at] + bytes([entry[at] ^ 4]) + entry[at + 1 :])
    plain = len(logprobs)  # bytes without weights
    for size in {*range(4, len(entry))} - {plain}:
        with pytest.raises(StoreDamaged, match="sample 7"):
            read(entry[:size])


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
        lossweights.check(weight, tokens, LENGTH, "sample 7")
