"""Groups that are computed before their step is whole: the same training, whatever was computed when."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rhymed.core.config import Config
from rhymed_store.client import StoredSample
from rhymed_workers.trainer.learner import TorchLearner
from rhymed_workers.trainer.policy.policy import Policy
from tests.workers.trainer import test_learner as learners
from tests.workers.trainer.test_learner import GROUP, PROMPTS, changed, equal, rewarded, samples, untimed, weights

learner = learners.learner
Make = Callable[..., TorchLearner]

RECIPES: list[dict[str, Any]] = [
    {},
    {"aggregation": "seq-mean-token-mean", "kl_coef": 0.1},
    {"algorithm": "dr_grpo"},
    {"algorithm": "gspo", "off_policy_mask": 0.5},
    {"algorithm": "rloo"},
    {"algorithm": "dapo"},
    {"algorithm": "dapo", "overlong_filter": True, "micro_tokens": 1000},
    {"correction": "sequence-mask"},
]


def early(trained: TorchLearner, step: int, given: list[StoredSample], *prompts: int) -> None:
    for prompt in prompts:
        trained.begin(step, given[prompt * GROUP : (prompt + 1) * GROUP])


def gradients(trained: TorchLearner) -> list[torch.Tensor]:
    """Those of every update from now on, as one tensor each. The updates are made, too."""
    found, make = [], trained._optimize

    def optimize(loss: float, sums: Any) -> None:
        every = [parameter.grad for parameter in trained.policy.trained()]
        found.append(torch.cat([grad.flatten() for grad in every if grad is not None]))
        make(loss, sums)

    trained._optimize = optimize  # type: ignore[method-assign]
    return found


@pytest.mark.parametrize("settings", RECIPES, ids=str)
def test_group_by_group_is_the_whole_step_up_to_rounding(learner: Make, settings: dict[str, Any]) -> None:
    whole, parts = learner(**settings), learner(**settings, overlap=True)
    first, second = gradients(whole), gradients(parts)
    for step in range(2):
        given = samples(step)
        expected = whole.train(given)
        early(parts, step, given, 1)
        found = parts.train(given)
        assert found.pop("actor/overlap_ratio") > 0
        for name, value in untimed(expected).items():
            assert found[name] == pytest.approx(value, rel=1e-4, abs=1e-7), name
        torch.testing.assert_close(first[step], second[step], rtol=1e-4, atol=1e-5 * float(first[step].abs().max()))


@pytest.mark.parametrize("settings", RECIPES, ids=str)
def test_what_was_computed_when_changes_no_bit(learner: Make, settings: dict[str, Any]) -> None:
    orders: list[tuple[int, ...]] = [(), (2, 0), (1, 1)]
    if not settings or "micro_tokens" in settings:
        orders += [(0, 1, 2), (1,), (2, 1, 0)]
    results = []
    for order in orders:
        trained = learner(**settings, overlap=True)
        metrics = []
        for step in range(2):
            early(trained, step, samples(step), *order)
            metrics.append(untimed(trained.train(samples(step))))
            share = metrics[-1].pop("actor/overlap_ratio")
            assert (share > 0) == bool(order)
            assert (share == 1) == (len(set(order)) == PROMPTS)
        results.append((weights(trained), metrics))
    for found, metrics in results[1:]:
        assert equal(found, results[0][0])
        assert metrics == results[0][1]


def test_a_checkpoint_continues_in_the_middle_of_an_overlap(learner: Make, tiny_model: Path, tmp_path: Path) -> None:
    straight = learner(overlap=True)
    for step in range(3):
        straight.train(samples(step))
    first = learner(overlap=True)
    first.train(samples(0))
    early(first, 1, samples(1), 0, 1)
    first.save(tmp_path)
    second = learner(tmp_path, overlap=True)
    second.load(tmp_path)
    for step in range(1, 3):
        early(second, step, samples(step), 2)
        second.train(samples(step))
    assert equal(weights(second), weights(straight))


def replaced(given: list[StoredSample], number: int, **fields: Any) -> list[StoredSample]:
    return [dataclasses.replace(one, **fields) if at == number else one for at, one in enumerate(given)]


@pytest.mark.parametrize("how", ["tokens", "logprobs", "reward", "missing", "group missing", "unscored"])
def test_a_group_that_is_another_one_in_the_step_is_computed_anew(learner: Make, how: str) -> None:
    given = samples(0)
    one = given[GROUP + 1]
    assert one.logprobs is not None
    final = {
        "tokens": lambda: replaced(given, GROUP + 1, tokens=one.tokens[::-1] + 1),
        "logprobs": lambda: replaced(given, GROUP + 1, logprobs=one.logprobs - 0.5),  # type: ignore[operator]
        "reward": lambda: [changed(one, reward=9.0) if one is given[GROUP + 1] else one for one in given],
        "missing": lambda: given[: GROUP + 1] + given[GROUP + 2 :],
        "group missing": lambda: given[:GROUP] + given[2 * GROUP :],
        "unscored": lambda: [changed(one, reward=None) if one is given[GROUP + 1] else one for one in given],
    }[how]()
    expected, found = learner(overlap=True), learner(overlap=True)
    metrics = expected.train(final)
    early(found, 0, given, 0, 1, 2)
    again = found.train(final)
    assert equal(weights(expected), weights(found))
    assert again.pop("actor/overlap_ratio") == metrics.pop("actor/overlap_ratio") == 0
    assert untimed(again) == untimed(metrics)


def test_log_probs_that_no_engine_gave_are_the_same_in_the_step(learner: Make) -> None:
    given = [dataclasses.replace(sample, logprobs=np.full(sample.info.length, np.nan)) for sample in samples(0)]
    trained = learner(overlap=True, correction="none")
    early(trained, 0, given, 1)
    assert trained.train(given)["actor/overlap_ratio"] > 0


def test_groups_of_another_step_and_without_the_setting_are_ignored(learner: Make) -> None:
    def refuse(*arguments: Any, **more: Any) -> None:
        raise AssertionError("nothing is computed")

    for settings, step in (({"overlap": True}, 1), ({}, 0)):
        trained = learner(**settings)
        trained.policy.backward = refuse  # type: ignore[assignment]
        trained.begin(step, samples(step))


def test_a_step_without_signal_still_moves_the_weights_and_compares_engine_and_trainer(learner: Make) -> None:
    flat = [rewarded(samples(step), lambda info: 1.0) if step else samples(step) for step in range(2)]
    whole, parts = learner(), learner(overlap=True)
    for step in range(2):
        expected = untimed(whole.train(flat[step]))
        parts.begin(step, flat[step][:GROUP])
        found = untimed(parts.train(flat[step]))
    assert found["mismatch_kl/mean"] == pytest.approx(expected["mismatch_kl/mean"])
    assert found["actor/grad_norm"] == 0
    for name, tensor in weights(whole).items():
        torch.testing.assert_close(tensor, weights(parts)[name], rtol=0, atol=1e-5)


def test_an_interrupted_group_leaves_nothing_behind(learner: Make) -> None:
    """At each pass: the first of a group, and one that finds the gradient of the passes before it."""
    expected, passes = learner(overlap=True, micro_tokens=16), 0

    def count(done: int, total: int) -> None:
        nonlocal passes
        passes += 1

    expected.train(samples(0), count)
    assert passes > PROMPTS + 1, "some group has several"
    for last in range(passes - 1):
        trained, calls = learner(overlap=True, micro_tokens=16), 0

        def stop(done: int, total: int) -> None:
            nonlocal calls
            if calls == last:  # noqa: B023
                raise RuntimeError("stopped")
            calls += 1

        with pytest.raises(RuntimeError, match="stopped"):
            trained.begin(0, samples(0), stop)
        assert all(parameter.grad is None for parameter in trained.policy.trained())
        trained.train(samples(0))
        assert equal(weights(expected), weights(trained))


def test_a_gradient_that_is_not_finite_skips_the_update(learner: Make) -> None:
    trained = learner(overlap=True, advantage_scale="none")
    before, spoilt = weights(trained), rewarded(samples(0), lambda info: 1e38 if info.id.index else -1e38)
    trained.begin(0, spoilt[:GROUP])
    assert trained.train(spoilt)["actor/skipped_updates"] == 1
    assert equal(before, weights(trained))


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"])
def test_a_step_may_be_large(tiny_model: Path, aggregation: str) -> None:
    """65,536 samples of 32,768 tokens: the gradient of a few of them is a small number in the sum, and exact."""
    found = []
    for settings in ({}, {"overlap": True}):
        rollout = {"max_prompt_length": 16, "max_response_length": 1 << 15, "prompts_per_step": 64}
        trainer = {"aggregation": aggregation, **settings}
        config = Config.model_validate({"trainer": trainer, "rollout": {**rollout, "group_size": 1 << 10}})
        one = TorchLearner(config, Policy.load(tiny_model))
        every = gradients(one)
        early(one, 0, samples(0), 0, 2)
        one.train(samples(0))
        found.append(every[0])
    assert float((found[0] - found[1]).norm() / found[0].norm()) < 1e-5


def test_samples_in_turns_are_those_of_the_whole_step(learner: Make) -> None:
    def turned(sample: StoredSample) -> StoredSample:
        length = sample.info.length
        own = (length - 2, 2) if length > 3 else (length,)
        return changed(sample, turns=list(own)) if len(own) > 1 else sample

    given = [turned(sample) for sample in samples(0)]
    whole, parts = learner(), learner(overlap=True)
    first, second = gradients(whole), gradients(parts)
    expected = untimed(whole.train(given))
    early(parts, 0, given, 1)
    found = untimed(parts.train(given))
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-4, abs=1e-7), name
    torch.testing.assert_close(first[0], second[0], rtol=1e-4, atol=1e-5 * float(first[0].abs().max()))
