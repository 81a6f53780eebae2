"""Advantages and what is added to rewards, and the identities between the kinds."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rhymed.core.algorithms import Recipe, expand
from rhymed_workers.trainer.algorithms import advantages as room
from rhymed_workers.trainer.algorithms.advantages import advantages, overlong_penalty

GROUPS = st.lists(st.lists(st.floats(-5, 5, width=32), min_size=1, max_size=6), min_size=1, max_size=5)
NAMES = ["grpo", "dr_grpo", "rloo", "max_rl"]


def of_samples(rewards: Tensor, groups: Tensor, recipe: Recipe) -> Tensor:
    return advantages(rewards, groups, torch.ones(len(rewards), dtype=torch.long), recipe)


@pytest.mark.parametrize("name", NAMES)
def test_equal_rewards_give_exactly_nothing(name: str) -> None:
    rewards = torch.tensor([0.1, 0.1, 0.1, 1.0, 0.0])
    found = of_samples(rewards, torch.tensor([0, 0, 0, 1, 1]), expand(name, {}))
    assert found[:3].tolist() == [0, 0, 0]
    assert found[3] == -found[4] > 0


def test_each_kind_is_its_definition() -> None:
    rewards, groups = torch.tensor([0.0, 4.0, 2.0, 3.0, 1.0]), torch.tensor([0, 0, 0, 1, 1])

    def found(name: str, **settings: object) -> list[float]:
        return of_samples(rewards, groups, expand(name, settings)).tolist()

    assert found("dr_grpo") == [-2, 2, 0, 1, -1]
    assert found("grpo") == pytest.approx([-1, 1, 0, 0.5**0.5, -(0.5**0.5)], rel=1e-3)
    assert found("rloo") == [-3, 3, 0, 2, -2]
    assert found("max_rl") == [-1, 1, 0, 0.5, -0.5]
    deviation = float(rewards.double().std()) + 1e-4
    assert found("grpo", advantage_scale="batch") == pytest.approx([a / deviation for a in (-2, 2, 0, 1, -1)])
    both = found("rloo", advantage_scale="group")
    assert both == pytest.approx([1.5 * -1, 1.5, 0, 2 * 0.5**0.5, -2 * 0.5**0.5], rel=1e-3)


def test_a_group_whose_mean_is_not_positive_has_no_max_rl_advantage() -> None:
    rewards = torch.tensor([-1.0, 1.0, -2.0, 1.0])
    assert of_samples(rewards, torch.tensor([0, 0, 1, 1]), expand("max_rl", {})).tolist() == [0, 0, 0, 0]


@given(GROUPS)
def test_advantages_of_a_group_sum_to_nothing_and_do_not_know_other_groups(groups: list[list[float]]) -> None:
    rewards = torch.tensor([reward for group in groups for reward in group])
    numbers = torch.tensor([number for number, group in enumerate(groups) for _ in group])
    for name in ("grpo", "rloo"):
        found = of_samples(rewards, numbers, expand(name, {}))
        assert torch.isfinite(found).all()
        for number, group in enumerate(groups):
            mine = found[numbers == number]
            assert mine.sum().abs() < 1e-3
            alone = of_samples(torch.tensor(group), torch.zeros(len(group), dtype=torch.long), expand(name, {}))
            assert torch.equal(mine, alone)


@given(GROUPS)
def test_leaving_one_out_is_a_multiple_of_the_distance_to_the_mean(groups: list[list[float]]) -> None:
    rewards = torch.tensor([reward for group in groups for reward in group])
    numbers = torch.tensor([number for number, group in enumerate(groups) for _ in group])
    sizes = torch.tensor([len(group) for group in groups for _ in group])
    centred = of_samples(rewards, numbers, expand("dr_grpo", {}))
    factor = sizes / (sizes - 1).clamp(min=1)
    assert torch.allclose(of_samples(rewards, numbers, expand("rloo", {})), factor * centred, atol=1e-5)


LENGTHS = torch.tensor([3, 1, 4, 2])
REWARDS, NUMBERS = torch.tensor([1.0, 0.0, 0.5, 0.25]), torch.tensor([0, 0, 1, 1])


@pytest.mark.parametrize("name", ["reinforce++", "reinforce++-baseline"])
def test_whitened_advantages_have_mean_0_and_variance_1_over_tokens_that_are_kept(name: str) -> None:
    kept = torch.tensor([True, True, False, True])
    found = advantages(REWARDS, NUMBERS, LENGTHS, expand(name, {}), kept_B=kept)[kept.repeat_interleave(LENGTHS)]
    assert found.mean() == pytest.approx(0, abs=1e-6)
    assert found.var() == pytest.approx(1, abs=1e-5)


def test_returns_are_the_discounted_rewards_to_go() -> None:
    kl_N = torch.arange(10) / 10
    recipe = expand("reinforce++", {"whiten": False, "gamma": 0.5, "kl_coef": 0.1})
    found = advantages(REWARDS, NUMBERS, LENGTHS, recipe, kl_N=kl_N)
    rewards = [-0.0, -0.01, -0.02 + 1]
    expected = [rewards[0] + 0.5 * (rewards[1] + 0.5 * rewards[2]), rewards[1] + 0.5 * rewards[2], rewards[2]]
    assert found[:3].tolist() == pytest.approx(expected)
    assert found[3] == pytest.approx(-0.03)


def test_groups_take_the_sum_of_what_tokens_earned() -> None:
    earned_N = torch.arange(10.0)
    for name in ("grpo", "rloo", "max_rl", "gdpo"):
        recipe = expand(name, {})
        plain = advantages(REWARDS, NUMBERS, LENGTHS, recipe)
        assert torch.equal(advantages(REWARDS, NUMBERS, LENGTHS, recipe, earned_N=earned_N), plain), name


def test_a_kl_in_the_reward_is_summed_over_the_sample_before_the_baseline() -> None:
    kl_N = torch.tensor([0.1, 0.2, 0.3, 1.0, 0.0, 0.0, 0.0, 0.0, 0.5, 0.5])
    found = advantages(REWARDS, NUMBERS, LENGTHS, expand("rloo", {"kl_coef": 0.5}), kl_N=kl_N)
    shaped = [1 - 0.3, 0 - 0.5, 0.5, 0.25 - 0.5]
    assert found[[0, 3, 4, 8]].tolist() == pytest.approx(
        [shaped[0] - shaped[1], shaped[1] - shaped[0], shaped[2] - shaped[3], shaped[3] - shaped[2]]
    )


def test_overlong_responses_lose_reward_linearly() -> None:
    lengths = torch.tensor([1, 80, 85, 90, 100, 120])
    found = overlong_penalty(lengths, expand("dapo", {}), 100)
    assert found.tolist() == pytest.approx([0, 0, -0.25, -0.5, -1, -1])
    assert overlong_penalty(lengths, expand("dapo", {"overlong_penalty": 2.0}), 100)[-1] == -2


def test_sums_over_samples_skip_empty_ones() -> None:
    found = room.sample_sums(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2, 0, 1]))
    assert found.tolist() == [3, 0, 3]
