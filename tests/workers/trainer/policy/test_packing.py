from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rhymed_workers.trainer.policy.packing import PADDING, MicroBatch, Sequences, micro_batches, offsets

tokens = st.integers(1, 99)


@st.composite
def groups(draw: st.DrawFn) -> list[Sequences]:
    found = []
    for prompt in draw(st.lists(st.lists(tokens, min_size=1, max_size=9), min_size=1, max_size=4)):
        for response in draw(st.lists(st.lists(tokens, max_size=12), min_size=1, max_size=5)):
            found.append(Sequences(np.array(prompt, np.uint32), np.array(response, np.uint32)))
    return found


def context(batch: MicroBatch, place: int) -> list[int]:
    """Tokens that the position sees, itself included, in the order of their positions."""
    width = batch.tokens_BT.shape[1]
    row, column = divmod(place, width)
    segments, line = batch.segments_BT[row], batch.tokens_BT[row]
    if batch.packed:
        seen = [c for c in range(column + 1) if segments[c] in (0, segments[column])]
    else:
        seen = list(range(column + 1))
    assert batch.positions_BT[row, seen].tolist() == list(range(len(seen)))
    return line[seen].tolist()


@given(groups(), st.integers(1, 80), st.integers(1, 40), st.data())
def test_each_chosen_token_is_predicted_once_from_its_own_past(
    samples: list[Sequences], micro_tokens: int, pack_tokens: int, data: Any
) -> None:
    chosen = data.draw(st.lists(st.sampled_from(range(len(samples))), unique=True))
    batches = micro_batches(samples, chosen, micro_tokens, pack_tokens)
    starts = offsets(samples)
    expected = {
        int(starts[number]) + t: (samples[number].prompt.tolist() + samples[number].response.tolist()[:t], int(token))
        for number in chosen
        for t, token in enumerate(samples[number].response)
    }
    found = {}
    for batch in batches:
        for flat, place, target in zip(batch.flat_N, batch.predictor_N, batch.target_N, strict=True):
            assert int(flat) not in found
            found[int(flat)] = (context(batch, int(place)), int(target))
    assert found == expected


@given(groups(), st.integers(1, 80))
def test_a_micro_batch_keeps_the_budget_or_is_one_sample(samples: list[Sequences], micro_tokens: int) -> None:
    for batch in micro_batches(samples, range(len(samples)), micro_tokens):
        rows, width = batch.tokens_BT.shape
        assert rows * width <= micro_tokens or (rows == 1 and batch.segments_BT.max() == 1)
        assert (batch.tokens_BT[batch.segments_BT == PADDING] == 0).all()
        assert batch.packed == bool((batch.segments_BT > 1).any())


def test_siblings_share_their_prompt() -> None:
    prompt = np.arange(1, 61)
    samples = [Sequences(prompt, np.arange(30)) for _ in range(8)]
    (batch,) = micro_batches(samples, range(8), 4096)
    assert batch.tokens_BT.shape == (1, 60 + 8 * 30)


def test_long_samples_have_rows_of_their_own() -> None:
    samples = [Sequences(np.arange(1, 61), np.arange(600)) for _ in range(3)]
    (batch,) = micro_batches(samples, range(3), 4096)
    assert batch.tokens_BT.shape == (3, 660)
    assert not batch.packed


def test_nothing_gives_nothing() -> None:
    assert micro_batches([], [], 10) == []
    assert micro_batches([Sequences(np.array([1]), np.array([], np.uint32))], [0], 10) == []
