from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rhymed_workers.trainer.policy.grades import Grade
from rhymed_workers.trainer.policy.packing import MicroBatch, Sequences, micro_batches, offsets
from tests.workers.trainer.policy.samples import groups


def context(batch: MicroBatch, place: int) -> list[int]:
    """Tokens that the position sees, itself included, in the order of their positions."""
    ((bound, prefix),) = [
        (bound, prefix)
        for bound, prefix in zip(batch.bounds, batch.prefixes, strict=True)
        if bound[0] <= place < bound[-1]
    ]
    own = max(first for first in bound if first <= place)
    seen = [*range(*prefix), *range(bound[0], min(bound[1], place + 1)), *range(max(own, bound[1]), place + 1)]
    assert batch.positions_T[seen].tolist() == list(range(len(seen)))
    return batch.tokens_T[seen].tolist()


@given(groups(), st.integers(1, 80), st.sampled_from(Grade), st.data())
def test_each_chosen_token_is_predicted_once_from_its_own_past(
    samples: list[Sequences], micro_tokens: int, grade: Grade, data: st.DataObject
) -> None:
    chosen = data.draw(st.lists(st.sampled_from(range(len(samples))), unique=True))
    starts = offsets(samples)
    expected = {
        int(starts[number]) + t: (
            number,
            samples[number].prompt.tolist() + samples[number].response.tolist()[:t],
            int(token),
        )
        for number in chosen
        for t, token in enumerate(samples[number].response)
    }
    found = {}
    for batch in micro_batches(samples, chosen, micro_tokens, grade=grade):
        tokens, place_N = batch.apart()
        columns = (batch.flat_N, batch.sample_N, batch.predictor_N, batch.target_N, place_N)
        for flat, number, place, target, other in zip(*columns, strict=True):
            assert int(flat) not in found
            found[int(flat)] = (int(number), context(batch, int(place)), int(target))
            row, column = divmod(int(other), tokens.shape[1])
            assert tokens[row, : column + 1].tolist() == found[int(flat)][1]
    assert found == expected


@given(groups(), st.integers(1, 80))
def test_a_micro_batch_keeps_the_budget_or_is_one_sample(samples: list[Sequences], micro_tokens: int) -> None:
    for batch in micro_batches(samples, range(len(samples)), micro_tokens):
        assert batch.tokens <= micro_tokens or [len(bound) for bound in batch.bounds] == [3]


@given(groups(), st.integers(1, 80), st.sampled_from([Grade.ROWS, Grade.ALONE]), st.booleans())
def test_padding_keeps_the_budget_too(samples: list[Sequences], micro_tokens: int, grade: Grade, whole: bool) -> None:
    """Every second response belongs to the sample of the one before."""
    given = [sequence._replace(sample=number // 2) for number, sequence in enumerate(samples)]
    batches = micro_batches(given, range(len(given)), micro_tokens, whole=whole, grade=grade)
    for batch in batches:
        numbers = set(batch.sample_N.tolist()) if whole else set(batch.sequences)
        assert batch.apart()[0].size <= micro_tokens or len(numbers) == 1
        assert grade is Grade.ROWS or len(numbers) == 1
    if whole:
        everyone = [number for batch in batches for number in set(batch.sample_N.tolist())]
        assert len(everyone) == len(set(everyone))


@given(groups(), st.integers(1, 80))
def test_rows_lie_end_to_end(samples: list[Sequences], micro_tokens: int) -> None:
    for batch in micro_batches(samples, range(len(samples)), micro_tokens):
        edges = [0, *itertools.chain.from_iterable(bound[1:] for bound in batch.bounds)]
        assert edges == sorted(set(edges))
        assert edges[-1] == batch.tokens == len(batch.positions_T)
        assert all(after[0] == before[-1] for before, after in itertools.pairwise(batch.bounds))


@given(groups(), st.integers(1, 80))
def test_a_sample_is_in_one_micro_batch(samples: list[Sequences], micro_tokens: int) -> None:
    numbers = [set(batch.sample_N.tolist()) for batch in micro_batches(samples, range(len(samples)), micro_tokens)]
    assert sum(map(len, numbers)) == len(set().union(*numbers))


@given(groups(), st.integers(1, 80))
def test_each_token_keeps_its_floor(samples: list[Sequences], micro_tokens: int) -> None:
    with_floors = [
        one._replace(floors=-one.response.astype(np.float32)) if number % 2 else one
        for number, one in enumerate(samples)
    ]
    for batch in micro_batches(with_floors, range(len(samples)), micro_tokens):
        expected = np.where(batch.sample_N % 2 == 1, -batch.target_N, -np.inf)
        if batch.floor_N is None:
            assert np.isinf(expected).all()
        else:
            assert batch.floor_N.dtype == np.float32
            np.testing.assert_array_equal(batch.floor_N, expected)
    assert all(batch.floor_N is None for batch in micro_batches(samples, range(len(samples)), micro_tokens))


def test_siblings_share_their_prompt() -> None:
    prompt = np.arange(1, 61)
    samples = [Sequences(prompt, np.arange(30)) for _ in range(8)]
    (batch,) = micro_batches(samples, range(8), 4096)
    assert batch.tokens == 60 + 8 * 30
    assert batch.bounds == ((0, *range(60, 301, 30)),)


def test_prompts_share_their_beginning_but_not_their_last_token() -> None:
    system = np.arange(1, 31)
    prompts = [np.append(system, own) for own in ([40, 41], [40, 42, 43], [])] + [np.arange(50, 55)] * 2
    samples = [Sequences(prompt, np.arange(number + 1)) for number, prompt in enumerate(prompts)]
    (batch,) = micro_batches(samples, range(5), 4096)
    assert batch.tokens == 29 + (3 + 1) + (4 + 2) + (1 + 3) + (5 + 4 + 5)
    rows = dict(zip(batch.bounds, batch.prefixes, strict=True))
    assert sorted(last - first for first, last in rows.values()) == [0, 0, 29, 29, 29]
    assert {prefix for prefix in rows.values() if prefix != (0, 0)} == {bound for bound in rows if len(bound) == 2}


def test_nothing_gives_nothing() -> None:
    assert micro_batches([], [], 10) == []
    assert micro_batches([Sequences(np.array([1]), np.array([], np.uint32))], [0], 10) == []
