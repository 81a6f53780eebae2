"""A step's tensors for every algorithm, with a real tiny model in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rhymed.core.algorithms import ALGORITHMS
from rhymed.core.config import Config, Trainer
from rhymed_store.client import StoredSample
from rhymed_workers.trainer.algorithms.losses import token_losses
from rhymed_workers.trainer.batch import Batch, assemble
from rhymed_workers.trainer.policy.backbone import Compute, hidden_states, load_model
from rhymed_workers.trainer.policy.packing import MicroBatch, micro_batches
from rhymed_workers.trainer.policy.policy import Policy
from rhymed_workers.trainer.turns import sequences_of
from tests.workers.trainer.test_learner import rewarded, samples

LONGEST = 12
CORRECTIONS = [
    {"correction": "sequence-mask"},
    {"correction": "geometric", "geometric_min": 0.7, "geometric_max": 1.3},
    {"correction": "icepop"},
    {"off_policy_mask": 0.05},
    {"kl_coef": 0.1, "kl_in": "reward"},
    {"kl_coef": 0.1, "kl_estimator": "k2"},
]
WIDE = {"clip_eps_low": 0.5, "clip_eps_high": 1.0}  # so that not every sequence is clipped
OF_REWARDS = [name for name, recipe in ALGORITHMS.items() if recipe.advantage != "none"]
CASES = [*((name, {}) for name in OF_REWARDS), *(("gspo", WIDE | changes) for changes in CORRECTIONS)]


def settings(name: str, **changes: Any) -> Trainer:
    rollout = {"prompts_per_step": 3, "group_size": 4}
    return Config.model_validate({"trainer": {"algorithm": name, **changes}, "rollout": rollout}).trainer


class WidePolicy(Policy):
    """In float64, which no setting asks for."""

    def hidden(self, batch: MicroBatch) -> Tensor:
        return hidden_states(self.model, batch)


@pytest.fixture(scope="module")
def policies(tiny_model: Path) -> tuple[Policy, Policy]:
    """A policy in float64, and a reference that differs from it."""
    made = []
    for seed in range(2):
        policy = WidePolicy(load_model(tiny_model, Compute()).double(), 1.0, torch.float64)
        torch.manual_seed(seed)
        with torch.no_grad():
            for parameter in policy.model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.02)
        made.append(policy)
    return made[0], made[1]


def logprobs(policy: Policy) -> Callable[[Sequence[MicroBatch], int], Tensor]:
    def found(batches: Sequence[MicroBatch], count: int) -> Tensor:
        logp_N = torch.full((count,), torch.nan, dtype=torch.float64)
        for batch in batches:
            logp_N[torch.from_numpy(batch.flat_N)] = policy.logprobs(batch)
        return logp_N

    return found


def batch_of(given: Sequence[StoredSample], config: Trainer, policies: tuple[Policy, Policy]) -> Batch:
    reference = logprobs(policies[1]) if config.recipe.kl_coef else None
    return assemble(given, config, LONGEST, logprobs(policies[0]), reference)


def gradient(batch: Batch, config: Trainer, policy: Policy, noise_N: Tensor | None = None) -> Tensor:
    """Of all updates together, at the same weights. `noise_N`: how far the policy is from its old log-probs."""

    def loss(logp_N: Tensor, entropy_N: Tensor, flat_N: Tensor) -> Tensor:
        tokens = batch.tokens(logp_N, flat_N)
        if noise_N is not None:
            tokens = replace(tokens, old_N=tokens.old_N + noise_N[flat_N])
        return (token_losses(tokens, config.recipe).loss_N * batch.weights_N[flat_N]).sum()

    policy.model.zero_grad()
    for update in batch.updates:
        for micro in update:
            policy.backward(micro, loss, whole_sequences=config.recipe.whole_sequences(updates=len(batch.updates)))
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in policy.model.parameters()]
    return torch.cat([one.flatten() for one in gradients])


@pytest.mark.parametrize("minibatches", [pytest.param(1, marks=pytest.mark.thorough), 3])
@pytest.mark.parametrize(("name", "changes"), CASES, ids=str)
def test_any_split_into_micro_batches_gives_the_same_gradient(
    name: str, changes: dict[str, Any], minibatches: int, policies: tuple[Policy, Policy]
) -> None:
    given, found = samples(0), []
    draw, count = torch.Generator().manual_seed(0), sum(sample.info.length for sample in given)
    noise_N = torch.randn(count, generator=draw, dtype=torch.float64) * 0.2 if minibatches > 1 else None
    for micro_tokens in (1, 25, 40, 4096):
        config = settings(name, micro_tokens=micro_tokens, minibatches=minibatches, **changes)
        batch = batch_of(given, config, policies)
        found.append(gradient(batch, config, policies[0], noise_N))
    assert len(batch.updates) == minibatches
    assert found[0].norm() > 1e-4
    for other in found[1:]:
        assert (other - found[0]).abs().max() < 1e-6 * found[0].abs().max()


@pytest.mark.parametrize(("name", "changes"), CASES, ids=str)
def test_samples_that_are_not_computed_have_no_gradient(
    name: str, changes: dict[str, Any], policies: tuple[Policy, Policy]
) -> None:
    """One group is flat, one differs, one has a sample that was cut; the whole step is computed for comparison."""
    given = rewarded(samples(0), lambda info: 1.0 if info.id.prompt.endswith("1") else float(info.id.index % 2))
    config = settings(name, **changes)
    batch = batch_of(given, config, policies)
    every = [micro_batches(sequences_of(given), range(len(given)), config.micro_tokens)]
    full_config = settings(name, **changes)
    whole = replace(batch, updates=every)
    if batch.reference_N is not None:
        count = len(batch.sample_N)
        whole = replace(whole, reference_N=logprobs(policies[1])(every[0], count))
    if batch.old_N is not None:
        whole = replace(whole, old_N=logprobs(policies[0])(every[0], len(batch.sample_N)))
    found, expected = gradient(batch, config, policies[0]), gradient(whole, full_config, policies[0])
    assert (found - expected).abs().max() < 1e-9 * expected.abs().max()
    computed, possible = sum(len(b.flat_N) for b in batch.updates[0]), len(batch.sample_N)
    recipe = config.recipe
    skips = not recipe.dense and not recipe.whiten and not recipe.overlong_cache and not recipe.old_first
    assert computed < possible if skips or recipe.overlong_filter else computed == possible


def test_samples_that_were_cut_are_left_out_of_loss_and_mean_but_count_in_their_group(
    policies: tuple[Policy, Policy],
) -> None:
    """The first sample of each group was cut at the limit."""
    given = samples(0)
    batch = batch_of(given, settings("dapo", overlong_cache=0.0), policies)
    cut = np.array([sample.info.finish_reason == "length" for sample in given])
    lengths = np.array([sample.info.length for sample in given])
    cut_N = torch.from_numpy(cut.repeat(lengths))
    assert (batch.weights_N[cut_N] == 0).all()
    assert batch.weights_N[~cut_N].tolist() == pytest.approx([1 / lengths[~cut].sum()] * int((~cut_N).sum()))
    trained = {int(number) for micro in batch.updates[0] for number in batch.sample_N[micro.flat_N]}
    assert not trained & set(np.flatnonzero(cut).tolist())
    plain = batch_of(given, settings("grpo"), policies)
    assert torch.equal(batch.advantages_N, plain.advantages_N)


def test_long_responses_lose_reward_before_advantages_are_made(policies: tuple[Policy, Policy]) -> None:
    given = rewarded(samples(0), lambda info: 1.0)
    batch = batch_of(given, settings("dapo", overlong_cache=0.5, overlong_filter=False), policies)
    lost = [max(0.0, (sample.info.length - 6) / 6) for sample in given]
    assert batch.penalty == pytest.approx(np.mean(lost))
    starts = np.cumsum([0, *(sample.info.length for sample in given)])[:-1]
    for group in range(3):
        members = range(4 * group, 4 * group + 4)
        order = sorted(members, key=lambda number: lost[number])
        found = [float(batch.advantages_N[starts[number]]) for number in order]
        assert found == sorted(found, reverse=True)


def test_a_kl_in_the_reward_is_the_mean_that_is_reported(policies: tuple[Policy, Policy]) -> None:
    given = samples(0)
    batch = batch_of(given, settings("reinforce++"), policies)
    every = micro_batches(sequences_of(given), range(len(given)), 4096)
    count = len(batch.sample_N)
    old_N, reference_N = (logprobs(policy)(every, count) for policy in policies)
    assert batch.kl == pytest.approx(float((old_N - reference_N).mean()))
    assert batch.old_N is not None
    assert torch.allclose(batch.old_N, old_N)
    assert batch.reference_N is None  # the loss does not need it
