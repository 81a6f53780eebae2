"""Tokens of environments teach nothing and cost nothing: against whole rows through transformers' own model, in
float64, and against the same samples with those tokens cut out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rhymed.core.config import Trainer
from rhymed_store.client import StoredSample
from rhymed_workers.trainer.algorithms.losses import token_losses
from rhymed_workers.trainer.batch import Batch, assemble
from rhymed_workers.trainer.learner import TorchLearner
from rhymed_workers.trainer.policy.backbone import base_of
from rhymed_workers.trainer.policy.packing import MicroBatch
from rhymed_workers.trainer.policy.policy import Policy
from rhymed_workers.trainer.turns import sequences_of
from tests.workers.trainer import test_batch as batches
from tests.workers.trainer import test_learner as learners
from tests.workers.trainer.sessions import chosen, cut_out, distributions, sessions, written
from tests.workers.trainer.test_batch import CASES, batch_of, gradient, logprobs, settings
from tests.workers.trainer.test_learner import changed

policies, learner = batches.policies, learners.learner


def plain(policy: Policy) -> Any:
    """The same weights in transformers' own model, without our packing and attention."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(**policy.model.config.to_dict())
    model: Any = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model.load_state_dict(policy.model.state_dict())
    return model.double().eval()


def noise(batch: Batch) -> Tensor | None:
    """How far the policy has moved from its old log-probs, where a step has several updates."""
    draw = torch.Generator().manual_seed(0)
    drawn_N = torch.randn(len(batch.sample_N), generator=draw, dtype=torch.float64) * 0.2
    return drawn_N if len(batch.updates) > 1 else None


FEW = ("grpo", "gspo", "cispo", "gmpo", "ppo")
MARKED = [
    pytest.param(
        name, changes, count, marks=[] if name in FEW and not changes and count == 3 else pytest.mark.thorough
    )
    for name, changes in CASES
    for count in (1, 3)
]


@pytest.mark.parametrize(("name", "changes", "minibatches"), MARKED, ids=str)
def test_packed_rows_give_the_gradient_of_separate_ones(
    name: str, changes: dict[str, Any], minibatches: int, policies: tuple[Policy, Policy]
) -> None:
    """All tensors of the step and the loss as they are; the log-probs of each row by itself, without packing."""
    given, found = sessions(0), []
    for micro_tokens in (1, 40, 4096):
        config = settings(name, micro_tokens=micro_tokens, minibatches=minibatches, **changes)
        batch = batch_of(given, config, policies)
        noise_N = noise(batch)
        found.append(gradient(batch, config, policies[0], noise_N))
    model = plain(policies[0])
    logp_N = chosen(*distributions(model, given))
    with torch.no_grad():
        reference_N = chosen(*distributions(plain(policies[1]), given))
    whole = dataclasses.replace(batch, old_N=logp_N.detach() if batch.old_N is not None else None)
    whole = dataclasses.replace(whole, reference_N=None if batch.reference_N is None else reference_N)
    flat_N = torch.arange(len(logp_N))
    tokens = whole.tokens(logp_N, flat_N)
    if noise_N is not None:
        tokens = dataclasses.replace(tokens, old_N=tokens.old_N + noise_N)
    (token_losses(tokens, config.recipe).loss_N * whole.weights_N).sum().backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    assert expected.norm() > 1e-4
    for one in found:
        assert (one - expected).abs().max() < 1e-6 * expected.abs().max()


@pytest.mark.parametrize(("name", "changes"), CASES, ids=str)
def test_a_step_is_that_of_samples_with_the_tokens_cut_out(
    name: str, changes: dict[str, Any], policies: tuple[Policy, Policy]
) -> None:
    """Advantages, weights, norms, lengths: nothing knows that there were turns, or how many rows."""
    given, config = sessions(0), settings(name, minibatches=3, overlong_cache=0.0, **changes)
    count = sum(sample.info.learned for sample in given)
    drawn = torch.from_numpy(np.random.default_rng(1).normal(-5, 1, (3, count)))

    def found(samples: Sequence[StoredSample]) -> Batch:
        one, other, values = ((lambda batches, total, row=row: row.clone()) for row in drawn)
        reference = other if config.recipe.kl_coef else None
        return assemble(samples, config, 12, one, reference, values if config.recipe.critic else None)

    turns, cut = found(given), found(cut_out(given))
    for field in dataclasses.fields(Batch):
        one, other = getattr(turns, field.name), getattr(cut, field.name)
        if isinstance(one, Tensor):
            assert torch.equal(one, other), field.name
    assert turns.metrics == cut.metrics
    assert (turns.targets is None) == (not config.recipe.critic)
    if turns.targets is not None and cut.targets is not None:
        for one, other in zip(vars(turns.targets).values(), vars(cut.targets).values(), strict=True):
            assert torch.equal(one, other)


def odd(given: Sequence[StoredSample], value: float) -> list[StoredSample]:
    """With this as the engine's log-prob of every token of an environment."""
    found = []
    for sample in given:
        mask = written(sample.info)
        assert sample.logprobs is not None
        logprobs = np.where(mask, sample.logprobs, value).astype(np.float32)
        found.append(dataclasses.replace(sample, logprobs=logprobs))
    return found


@pytest.mark.parametrize(("name", "changes"), [case for case in CASES if case[0] in ("grpo", "gspo", "ppo")], ids=str)
@pytest.mark.parametrize("value", [-1e6, 1e6, float("nan")])
def test_no_number_of_a_masked_token_changes_a_bit(
    learner: Callable[..., TorchLearner], name: str, changes: dict[str, Any], value: float
) -> None:
    one, other = learner(algorithm=name, **changes), learner(algorithm=name, **changes)
    expected, found = one.train(odd(sessions(0), 0.5)), other.train(odd(sessions(0), value))
    assert _untimed(found) == _untimed(expected)
    assert all(torch.equal(tensor, other.tensors()[key]) for key, tensor in one.tensors().items())


def _untimed(metrics: dict[str, float]) -> dict[str, float]:
    return {key: value for key, value in metrics.items() if not key.startswith(("timing", "perf"))}


def test_what_an_environment_says_after_the_last_turn_changes_no_bit(policies: tuple[Policy, Policy]) -> None:
    """It is context of nothing."""
    given, config = sessions(0), settings("grpo")
    other = [
        dataclasses.replace(sample, tokens=np.r_[sample.tokens[:-2], 250, 251].astype(np.uint32))
        if sample.info.turns == [2, 3, 1, 1, 4, 2]
        else sample
        for sample in given
    ]
    one, two = (gradient(batch_of(samples, config, policies), config, policies[0]) for samples in (given, other))
    assert any(not np.array_equal(a.tokens, b.tokens) for a, b in zip(given, other, strict=True))
    assert torch.equal(one, two)


@pytest.mark.parametrize("name", ["grpo", "gspo", "rloo", "reinforce++"])
def test_the_loss_is_exactly_0_where_the_next_token_is_an_environments(
    name: str, policies: tuple[Policy, Policy]
) -> None:
    """The gradient of the last hidden states, which nothing but the loss reads: 0 at each place that predicts a
    token of an environment or of a prompt, not 0 at those that predict the policy's."""
    given, config, policy = sessions(0), settings(name, micro_tokens=4096), policies[0]
    batch = batch_of(given, config, policies)
    states: list[Tensor] = []

    def keep(module: Any, arguments: Any, output: Any) -> None:
        output.last_hidden_state.retain_grad()
        states.append(output.last_hidden_state)

    handle = base_of(policy.model).register_forward_hook(keep)
    try:
        gradient(batch, config, policy)
    finally:
        handle.remove()
    micros = [micro for update in batch.updates for micro in update]
    assert len(micros) == len(states)
    for micro, state in zip(micros, states, strict=True):
        assert state.grad is not None
        slope_T = state.grad[0].abs().sum(-1)
        mask_T = torch.zeros(micro.tokens, dtype=torch.bool)
        mask_T[torch.from_numpy(micro.predictor_N)] = True
        assert mask_T.sum() < micro.tokens / 2
        assert (slope_T[~mask_T] == 0).all()
        taught_N = batch.advantages_N[torch.from_numpy(micro.flat_N)] != 0
        assert (slope_T[torch.from_numpy(micro.predictor_N)][taught_N] > 0).all()
        assert _targets(micro) == _learned(given, micro)


def _targets(micro: MicroBatch) -> list[tuple[int, int]]:
    return sorted(zip(micro.flat_N.tolist(), micro.target_N.tolist(), strict=True))


def _learned(given: Sequence[StoredSample], micro: MicroBatch) -> list[tuple[int, int]]:
    """The policy's tokens of the micro-batch's samples, with their places among those of the step."""
    every = np.concatenate([sample.tokens[written(sample.info)] for sample in given]).tolist()
    sample_N = np.repeat(np.arange(len(given)), [sample.info.learned for sample in given])
    numbers = {sequences_of(given)[number].sample for number in micro.sequences}
    return [(flat, token) for flat, token in enumerate(every) if sample_N[flat] in numbers]


def test_a_kl_in_the_reward_is_the_mean_over_the_policys_tokens(policies: tuple[Policy, Policy]) -> None:
    given = sessions(0)
    batch = batch_of(given, settings("reinforce++"), policies)
    with torch.no_grad():
        own_N, reference_N = (chosen(*distributions(plain(policy), given)) for policy in policies)
    assert batch.kl == pytest.approx(float((own_N - reference_N).mean()))
    assert batch.old_N is not None
    assert torch.allclose(batch.old_N, own_N)


def test_a_response_in_rows_is_as_long_as_its_longest_row(policies: tuple[Policy, Policy]) -> None:
    """Tokens of environments count, too: they take the room of the response."""
    given = [changed(sample, reward=1.0) for sample in sessions(0)]
    batch = batch_of(given, settings("dapo", overlong_cache=1.0, overlong_filter=False), policies)
    lengths = [7, 13, 4, 7, 2]  # of the five kinds
    expected = [lengths[number % 5] / 12 for number in range(12)]
    assert batch.penalty == pytest.approx(np.mean(np.minimum(1.0, expected)), abs=1e-9)


def test_metrics_are_of_the_policys_tokens(learner: Callable[..., TorchLearner], tiny_model: Path) -> None:
    given, made = sessions(0), learner(algorithm="dr_grpo", dual_clip=0.0)
    given = [changed(sample, reward=float(sample.info.id.index)) for sample in given]
    model = plain(made.policy)
    metrics = made.train(given)
    with torch.no_grad():
        logp_NV, target_N = distributions(model, given)
    logp_N, entropy_N = chosen(logp_NV, target_N), -(logp_NV.exp() * logp_NV).sum(-1)
    engine_N = np.concatenate([s.logprobs[written(s.info)] for s in given])  # type: ignore[index]
    assert metrics["actor/tokens"] == len(logp_N)
    assert metrics["actor/entropy"] == pytest.approx(float(entropy_N.mean()), rel=1e-5)
    difference = torch.from_numpy(engine_N).double() - logp_N
    k3 = ((-difference).exp() - 1 + difference).mean()
    assert metrics["mismatch_kl/mean"] == pytest.approx(float(k3), rel=1e-3)


def test_log_probs_of_a_step_are_those_of_separate_rows(policies: tuple[Policy, Policy]) -> None:
    given, config = sessions(0), settings("rloo", minibatches=2, micro_tokens=30)
    batch = batch_of(given, config, policies)
    found_N = logprobs(policies[0])([micro for update in batch.updates for micro in update], len(batch.sample_N))
    with torch.no_grad():
        expected_N = chosen(*distributions(plain(policies[0]), given))
    known_N = ~found_N.isnan()
    assert torch.allclose(found_N[known_N], expected_N[known_N])


def test_engine_log_probs_are_cut_where_the_trainer_has_none() -> None:
    config = Trainer()
    given = sessions(0)
    batch = assemble(given, config, 12, lambda batches, total: torch.zeros(total))
    assert len(batch.engine_N) == sum(sample.info.learned for sample in given)
    assert (batch.engine_N < 0).all()
