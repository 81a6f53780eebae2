from __future__ import annotations

from collections import Counter
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhymed.core.errors import DataError
from rhymed.core.messages import Cursor
from rhymed_broker.plan import Mixture, Plan, shares


def ids(dataset: int, count: int) -> list[str]:
    return [f"{dataset * 1000 + number:016x}" for number in range(count)]


def mixture(sizes: list[int], weights: list[float], seed: int = 0) -> Mixture:
    return Mixture(
        [
            (f"d{number}", ids(number, size), weight)
            for number, (size, weight) in enumerate(zip(sizes, weights, strict=True))
        ],
        seed,
    )


def owners(prompts: list[str]) -> list[int]:
    return [int(prompt, 16) // 1000 for prompt in prompts]


# With 26 prompts more, every dataset has one in an epoch.
MIXED = st.lists(st.tuples(st.integers(1, 60), st.floats(0.2, 5.0)), min_size=2, max_size=4)


@given(MIXED, st.integers(0, 3))
def test_every_row_of_prompts_has_the_datasets_in_their_shares(parts: list[tuple[int, float]], seed: int) -> None:
    sizes, weights = [size + 26 for size, _ in parts], [weight for _, weight in parts]
    mixed = mixture(sizes, weights, seed)
    assert mixed.size == sum(sizes) == sum(mixed.shares)
    found = owners([mixed.at(position) for position in range(3 * mixed.size)])
    for number, share in enumerate(mixed.shares):
        assert abs(share - mixed.size * weights[number] / sum(weights)) < 1
        assert found[: mixed.size].count(number) == share
        counts = [0, *accumulate(owner == number for owner in found)]
        part = share / mixed.size
        for length in (1, 5, 17):
            rows = [counts[at + length] - counts[at] for at in range(len(found) - length)]
            assert all(abs(count - length * part) <= 1 + len(parts) * part for count in rows)


def test_every_pass_of_a_dataset_has_each_of_its_prompts_once() -> None:
    mixed = mixture([30, 5], [1.0, 3.0])
    stream = [mixed.at(position) for position in range(4 * mixed.size)]
    small = [prompt for prompt in stream if owners([prompt]) == [1]]
    passes = [small[at : at + 5] for at in range(0, len(small) - 4, 5)]
    assert len(passes) > 10
    assert all(sorted(one) == ids(1, 5) for one in passes)
    assert len({tuple(one) for one in passes}) > 5  # permutations of their own
    large = [prompt for prompt in stream if owners([prompt]) == [0]]
    assert sorted(large[:30]) == ids(0, 30)


def test_weights_in_proportion_to_sizes_ask_every_prompt_once_an_epoch() -> None:
    mixed = mixture([8, 24], [1.0, 3.0])
    for epoch in range(3):
        asked = [mixed.at(position) for position in range(epoch * 32, (epoch + 1) * 32)]
        assert Counter(asked) == Counter(ids(0, 8) + ids(1, 24))


def test_one_dataset_is_in_the_order_that_it_had_without_a_mixture() -> None:
    prompts = ids(0, 20)
    plain, mixed = Plan(prompts, 3, 2, 4, seed=5), Plan(Mixture([("a", prompts, 0.3)], 5), 3, 2, 4)
    assert [plain.prompts(step) for step in range(plain.steps)] == [
        mixed.prompts(step) for step in range(mixed.steps)
    ]


@given(MIXED, st.integers(1, 4))
def test_no_step_has_a_prompt_twice_and_what_is_deferred_is_asked_soon(
    parts: list[tuple[int, float]], per_step: int
) -> None:
    mixed = mixture([size + 26 for size, _ in parts], [weight for _, weight in parts])
    plan = Plan(mixed, per_step, 1, 3)
    asked: list[str] = []
    for step in range(plan.steps):
        prompts = plan.prompts(step)
        assert len(set(prompts)) == len(prompts) == per_step
        assert len(plan.cursor(step).deferred) <= per_step
        asked += prompts
    stream = [mixed.at(position) for position in range(len(asked))]
    assert sum((Counter(stream) - Counter(asked)).values()) <= per_step  # deferred by the last step
    assert Plan(mixed, per_step, 1, 3).prompts(plan.steps - 1) == asked[-per_step:]  # as after a restart


def test_refills_that_pass_a_small_dataset_again_and_again_leave_a_bounded_number_waiting() -> None:
    plan, cursor = Plan(mixture([10, 1000], [1.0, 1.0]), 8, 1, 1000), Cursor()
    for _ in range(50):
        first, cursor = plan.draw(cursor, 8)
        whole, after = plan.draw(cursor, 40, first)  # more than the small dataset has
        begun, between = plan.draw(cursor, 15, first)
        rest, cursor = plan.draw(between, 25, first + begun)
        assert (begun + rest, cursor) == (whole, after), "however many rounds the refill takes"
        assert len(set(first + whole)) == 48
        assert len(cursor.deferred) <= 10


def test_what_cannot_be_mixed_is_refused_in_words() -> None:
    with pytest.raises(DataError, match=r"more than once \(a and b\)"):
        Mixture([("a", ids(0, 3), 1.0), ("b", ids(0, 1), 1.0)])
    with pytest.raises(DataError, match="d1: of an epoch of 8 prompts its weight gives it none"):
        mixture([4, 4], [1.0, 0.001])
    with pytest.raises(DataError, match=r"3 prompts has 70% of the weight: a step of 8 .* lower its weight"):
        Plan(mixture([97, 3], [0.3, 0.7]), 8, 2, 1)


def test_shares_are_whole_and_sum_up() -> None:
    assert shares([1, 1, 1], 10) == [4, 3, 3]
    assert shares([0.1, 0.2, 0.7], 10) == [1, 2, 7]
    assert shares([5], 0) == [0]
