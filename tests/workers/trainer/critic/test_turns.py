"""The critic over samples in turns: values of the policy's tokens alone, and advantages that pass the others by."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from rhymed_workers.trainer.algorithms import gae
from rhymed_workers.trainer.critic import ValueModel
from rhymed_workers.trainer.learner import TorchLearner
from rhymed_workers.trainer.policy.attention import NAME
from rhymed_workers.trainer.policy.packing import micro_batches
from rhymed_workers.trainer.turns import sequences_of
from tests.workers.trainer.critic import test_ppo as ppo
from tests.workers.trainer.sessions import rows, sessions
from tests.workers.trainer.test_learner import equal
from tests.workers.trainer.test_masked import odd

learner = ppo.learner


def plain(model: ValueModel) -> torch.Tensor:
    """One row at a time; the state before a token ends with the token before it."""
    model.body.set_attn_implementation("sdpa")
    found = []
    for sample in sessions(0):
        for tokens, learned in rows(sample):
            places = [place - 1 for place, own in enumerate(learned) if own]
            found.append(model.head(model.body(torch.tensor([tokens])).last_hidden_state[0, places]).squeeze(-1))
    model.body.set_attn_implementation(NAME)
    return torch.cat(found)


@pytest.mark.parametrize("micro_tokens", [1, 60, 4096])
def test_values_and_their_gradient_are_those_of_separate_rows(model: ValueModel, micro_tokens: int) -> None:
    expected_N = plain(model)
    ((expected_N - 1) ** 2).mean().backward()
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    found_N, given = torch.full_like(expected_N.detach(), torch.nan), sequences_of(sessions(0))
    for batch in micro_batches(given, range(len(given)), micro_tokens):
        found_N[torch.from_numpy(batch.flat_N)] = model.values(batch)
        model.backward(batch, lambda values_N: ((values_N - 1) ** 2).sum() / len(expected_N))
    assert torch.allclose(found_N, expected_N, atol=1e-5)
    for name, parameter in model.named_parameters():
        largest = max(1.0, gradients[name].abs().max().item())  # float32 rounds a sum by its largest part
        assert torch.allclose(parameter.grad, gradients[name], atol=1e-6 * largest), name


def test_masked_tokens_change_no_bit_of_policy_and_critic(learner: Callable[..., TorchLearner]) -> None:
    one, other = (learner(minibatches=2, gae_lambda=0.9) for _ in range(2))
    for step in range(2):  # in the first one all values are 0
        expected, found = one.train(odd(sessions(step), 0.5)), other.train(odd(sessions(step), float("nan")))
        assert ppo.untimed(found) == ppo.untimed(expected)
    assert equal(ppo.policy(one), ppo.policy(other))
    assert equal(ppo.values(one), ppo.values(other))
    assert found["critic/grad_norm"] > 0


def test_an_answer_costs_no_discount() -> None:
    """The environment's tokens are not on the axis, and rows follow in time."""
    rewards_N = gae.token_rewards(torch.tensor([1.0]), torch.tensor([4]))
    values_N = torch.tensor([0.1, 0.2, 0.3, 0.4])
    found = gae.estimate(rewards_N, values_N, torch.tensor([4]), gamma=0.5, lam=0.5)
    assert float(found.advantages_N[0]) == pytest.approx(
        sum(0.25**k * d for k, d in enumerate([0.1 - 0.1, 0.15 - 0.2, 0.2 - 0.3, 1 - 0.4]))
    )
