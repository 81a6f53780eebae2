from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhymed.core.errors import DataError
from rhymed.core.messages import SampleId
from rhymed_broker.plan import Plan


def ids(count: int) -> list[str]:
    return [f"{number * 0x9E3779B97F4A7C15 % 2**64:016x}" for number in range(1, count + 1)]


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 6), st.integers(0, 5))
def test_every_prompt_once_an_epoch_and_never_twice_a_step(size: int, per_step: int, epochs: int, seed: int) -> None:
    size = max(size, per_step)
    plan = Plan(ids(size), per_step, 2, epochs, seed=seed)
    stream: list[str] = []
    for step in range(plan.steps):
        prompts = plan.prompts(step)
        assert len(set(prompts)) == len(prompts) == per_step
        stream += prompts
    assert len(stream) > epochs * size - per_step
    for epoch in range(len(stream) // size):
        assert Counter(stream[epoch * size : (epoch + 1) * size]) == Counter(ids(size))


def test_a_position_is_all_that_a_resume_needs() -> None:
    whole = Plan(ids(10), 4, 2, 9)
    steps = [whole.samples(step) for step in range(whole.steps)]
    assert Plan(list(reversed(ids(10))), 4, 2, 9).samples(17) == steps[17]
    assert steps[0] == [SampleId(0, prompt, index) for prompt in whole.prompts(0) for index in range(2)]


def test_the_order_stays_what_it_is() -> None:
    """A run that is resumed with a later release must see the same prompts."""
    plan = Plan([f"{number:02x}" for number in range(12)], 5, 2, 2, seed=7)
    assert [[int(prompt, 16) for prompt in plan.prompts(step)] for step in range(plan.steps)] == FROZEN


FROZEN = [[1, 2, 3, 5, 4], [8, 10, 11, 0, 6], [9, 7, 0, 3, 6], [7, 4, 1, 5, 10]]


def test_epochs_and_seeds_differ() -> None:
    plan, other = Plan(ids(50), 50, 2, 2), Plan(ids(50), 50, 2, 2, seed=1)
    assert plan.prompts(0) != plan.prompts(1)
    assert plan.prompts(0) != other.prompts(0)


def test_a_step_is_of_the_epoch_of_most_of_its_prompts() -> None:
    plan = Plan(ids(10), 4, 2, 3)  # the seams: after 2 prompts of step 2, and between steps 4 and 5
    assert epochs(plan, 7) == [0, 0, 0, 1, 1, 2, 2]
    assert epochs(Plan(ids(4), 3, 2, 3), 4) == [0, 1, 1, 2]
    assert epochs(Plan(ids(1), 1, 2, 3), 3) == [0, 1, 2]


def epochs(plan: Plan, steps: int) -> list[int]:
    return [plan.epoch(plan.cursor(step)) for step in range(steps)]


def test_steps_end_the_run_early() -> None:
    assert Plan(ids(10), 4, 2, 2, steps=3).steps == 3
    assert Plan(ids(10), 4, 2, 2, steps=99).steps == 5
    with pytest.raises(IndexError):
        Plan(ids(10), 4, 2, 2).prompts(5)


def test_too_few_or_doubled_prompts_are_refused() -> None:
    with pytest.raises(DataError, match="3 prompts, a step needs 4"):
        Plan(ids(3), 4, 2, 1)
    with pytest.raises(DataError, match="more than once"):
        Plan([*ids(3), *ids(3)], 4, 2, 1)
