"""Every algorithm's value and gradient against its definition in float64, and what holds between algorithms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rhymed.core.algorithms import ALGORITHMS, Recipe, expand
from rhymed_workers.trainer.algorithms.losses import LOSSES, kl, kl_loss, token_losses, token_weights
from rhymed_workers.trainer.algorithms.tokens import Tokens
from tests.workers.trainer.algorithms import definitions
from tests.workers.trainer.algorithms.definitions import Row, batch_loss

LONGEST = 12
STEP = 1e-6  # of finite differences
CLIPPED = [name for name, recipe in ALGORITHMS.items() if recipe.loss == "clip"]
AGGREGATIONS = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")
CORRECTIONS: list[dict[str, Any]] = [
    {"correction": "none"},
    {"correction": "token-tis", "tis_cap": 1.2},
    {"correction": "sequence-mask", "sequence_mask_cap": 1.5},
    {"correction": "icepop", "icepop_min": 0.8, "icepop_max": 1.3},
    {"correction": "geometric", "geometric_min": 0.9, "geometric_max": 1.1},
    {"off_policy_mask": 0.02},
]
CASES = [
    *((name, {}) for name in ALGORITHMS),
    *(("grpo", changes) for changes in CORRECTIONS),
    *(("gspo", changes) for changes in CORRECTIONS),
    *(("grpo", {"kl_coef": 0.3, "kl_estimator": kind}) for kind in ("k1", "k2", "k3")),
    *((name, {"aggregation": kind}) for name in ("grpo", "gmpo") for kind in AGGREGATIONS),
    ("grpo", {"dual_clip": 1.1}),
    ("dppo", {"dppo_mask_low": 0.01, "dppo_mask_high": 0.01, "dppo_kl_tau": 0.5}),
    ("cispo", {"cispo_min": 0.9, "cispo_max": 1.1}),
    ("sapo", {"sapo_tau_pos": 2.0, "sapo_tau_neg": 3.0}),
]


def rows(seed: int, *, moved: float = 0.3, tokenwise: bool = False) -> list[Row]:
    """Samples of different length; `moved`: how far the policy is from the one before the update."""
    draw, found = np.random.default_rng(seed), []
    for length in (3, 1, 7, 0, 12, 4):
        old = -draw.gamma(2.0, 1.0, length)
        logp = old + moved * draw.normal(size=length)
        advantages = draw.normal(size=length if tokenwise else 1) * np.ones(length)
        engine, reference = old + 0.2 * draw.normal(size=length), old + 0.5 * draw.normal(size=length)
        arrays = (logp, logp, old, engine, reference, advantages)
        found.append(Row(*(array.tolist() for array in arrays), kept=length != 7))
    return found


def flat(given: list[Row], field: str) -> Tensor:
    return torch.tensor([value for row in given for value in getattr(row, field)], dtype=torch.float64)


def tokens(given: list[Row], logp_N: Tensor, chosen: Tensor | None = None) -> Tokens:
    """All of them, or those with these numbers."""
    lengths_B = torch.tensor([len(row.logp) for row in given])
    sample_N = torch.arange(len(given)).repeat_interleave(lengths_B)
    parts = [flat(given, field) for field in ("old", "engine", "advantages")]
    reference_N = flat(given, "reference")
    if chosen is None:
        return Tokens(logp_N, *parts, sample_N, lengths_B, reference_N)
    return Tokens(logp_N, *(part[chosen] for part in parts), sample_N[chosen], lengths_B, reference_N[chosen])


def weights(given: list[Row], recipe: Recipe) -> Tensor:
    lengths_B, kept_B = torch.tensor([len(row.logp) for row in given]), torch.tensor([row.kept for row in given])
    return token_weights(lengths_B, recipe.aggregation, longest=LONGEST, kept_B=kept_B).double()


def value_and_gradient(given: list[Row], recipe: Recipe, updated: bool = True) -> tuple[float, Tensor]:
    logp_N = flat(given, "logp").requires_grad_()
    found = token_losses(replace(tokens(given, logp_N), updated=updated), recipe)
    total = (found.loss_N * weights(given, recipe)).sum()
    (gradient,) = torch.autograd.grad(total, logp_N)
    return total.item(), gradient


def finite_differences(given: list[Row], recipe: Recipe) -> Tensor:
    found = []
    for number, row in enumerate(given):
        for place in range(len(row.logp)):

            def moved(step: float, number: int = number, row: Row = row, place: int = place) -> float:
                logp = [value + step * (at == place) for at, value in enumerate(row.logp)]
                changed = [replace(row, logp=logp) if at == number else other for at, other in enumerate(given)]
                return batch_loss(changed, recipe, LONGEST)

            found.append((moved(STEP) - moved(-STEP)) / (2 * STEP))
    return torch.tensor(found, dtype=torch.float64)


@pytest.mark.parametrize("tokenwise", [False, True])
@pytest.mark.parametrize(("name", "changes"), CASES, ids=str)
def test_value_and_gradient_are_those_of_the_definition(name: str, changes: dict[str, Any], tokenwise: bool) -> None:
    recipe = expand(name, changes)
    for seed in range(3):
        given = rows(seed, tokenwise=tokenwise)
        value, gradient = value_and_gradient(given, recipe)
        assert value == pytest.approx(batch_loss(given, recipe, LONGEST), rel=1e-6, abs=1e-8)
        assert torch.allclose(gradient, finite_differences(given, recipe), rtol=1e-5, atol=1e-7)


def test_every_loss_has_a_definition() -> None:
    assert LOSSES.keys() == definitions.POLICY_LOSSES.keys()


@pytest.mark.parametrize("name", ["gspo", "rloo", "gmpo"])
def test_a_sequences_ratio_has_the_gradient_of_the_sequence(name: str) -> None:
    """The sequence's own loss, averaged over samples, as papers and TRL write it."""
    recipe = expand(name, {"correction": "none"})
    given = rows(1)
    logp_N = flat(given, "logp").requires_grad_()
    losses = []
    for row, part in zip(given, logp_N.split([len(row.logp) for row in given]), strict=True):
        if not row.logp or not row.kept:
            losses.append(torch.zeros((), dtype=torch.float64))
            continue
        log_N, advantage = part - torch.tensor(row.old, dtype=torch.float64), row.advantages[0]
        if name == "gmpo":
            log_N = log_N.clamp(max=0.4) if advantage > 0 else log_N.clamp(min=-0.4)
            losses.append(-log_N.mean().exp() * advantage)
            continue
        ratio = log_N.mean().exp() if name == "gspo" else log_N.sum().exp()
        inside = ratio.clamp(1 - recipe.clip_eps_low, 1 + recipe.clip_eps_high)
        losses.append(torch.max(-ratio * advantage, -inside * advantage))
    expected = torch.stack(losses).mean()
    (slopes,) = torch.autograd.grad(expected, logp_N)
    value, gradient = value_and_gradient(given, recipe)
    assert value == pytest.approx(expected.item(), rel=1e-6)
    assert torch.allclose(gradient, slopes, rtol=1e-6, atol=1e-9)


def test_before_the_first_update_the_losses_of_one_aggregation_have_one_gradient() -> None:
    given = rows(2, moved=0.0)
    for aggregation in AGGREGATIONS:
        gradients = []
        for name in ("grpo", "gspo", "gmpo", "sapo", "dapo", "cispo", "bnpo"):
            _, gradient = value_and_gradient(given, expand(name, {"aggregation": aggregation}))
            gradients.append(gradient)
        assert all(torch.allclose(gradients[0], other, rtol=1e-9) for other in gradients), aggregation
    plain, gradient = expand("dapo", {"correction": "none"}), -flat(given, "advantages")
    assert torch.allclose(value_and_gradient(given, plain)[1], gradient * weights(given, plain), rtol=1e-9)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_before_the_first_update_incomplete_samples_have_the_same_loss(name: str) -> None:
    """A recipe whose ratios need whole samples does not need them while all ratios are 1."""
    recipe, given = expand(name, {}), rows(3, moved=0.0)
    whole, other = value_and_gradient(given, recipe), value_and_gradient(given, recipe, updated=False)
    assert whole[0] == pytest.approx(other[0], rel=1e-9)
    assert torch.allclose(whole[1], other[1], rtol=1e-9)
    assert not recipe.whole_sequences(updates=1)


SPLIT_CASES = [*((name, {}) for name in ALGORITHMS), *(("gspo", changes) for changes in CORRECTIONS)]


@pytest.mark.parametrize(("name", "changes"), SPLIT_CASES, ids=str)
@settings(max_examples=20)
@given(data=st.data())
def test_any_split_adds_up_to_the_same_gradient(name: str, changes: dict[str, Any], data: st.DataObject) -> None:
    """Into single tokens, or into samples where the recipe needs them whole."""
    recipe, given = expand(name, changes), rows(4)
    expected = value_and_gradient(given, recipe)
    sample_N = tokens(given, flat(given, "logp")).sample_N.tolist()
    units = sample_N if recipe.whole_sequences(updates=2) else list(range(len(sample_N)))
    micro = data.draw(st.lists(st.integers(0, 3), min_size=len(sample_N), max_size=len(sample_N)))
    logp_N, total = flat(given, "logp").requires_grad_(), torch.zeros((), dtype=torch.float64)
    for number in range(4):
        chosen = torch.tensor([place for place, unit in enumerate(units) if micro[unit] == number], dtype=torch.long)
        found = token_losses(tokens(given, logp_N[chosen], chosen), recipe)
        total = total + (found.loss_N * weights(given, recipe)[chosen]).sum()
    (gradient,) = torch.autograd.grad(total, logp_N)
    assert total.item() == pytest.approx(expected[0], abs=1e-6)
    assert torch.allclose(gradient, expected[1], atol=1e-6)


def test_weights_are_the_means_that_their_names_say() -> None:
    lengths, kept = torch.tensor([3, 1, 0, 4]), torch.tensor([True, True, True, False])

    def found(aggregation: Any, kept_B: Tensor | None = None) -> list[float]:
        return token_weights(lengths, aggregation, longest=10, kept_B=kept_B).tolist()

    assert found("token-mean") == [1 / 8] * 8
    assert found("token-mean", kept) == [1 / 4] * 4 + [0] * 4
    assert found("seq-mean-token-mean") == pytest.approx([1 / 12] * 3 + [1 / 4] + [1 / 16] * 4)
    assert found("seq-mean-token-sum", kept) == [1 / 4] * 4 + [0] * 4
    assert found("seq-mean-token-sum-norm") == pytest.approx([1 / 40] * 8)


def test_what_the_engine_does_not_know_counts_as_equal() -> None:
    given = rows(5)
    unknown = [replace(row, engine=[float("nan")] * len(row.engine)) for row in given]
    same = [replace(row, engine=row.old) for row in given]
    for name, changes in [("dppo", {}), *(("grpo", changes) for changes in CORRECTIONS[:5])]:
        recipe = expand(name, changes)
        assert value_and_gradient(unknown, recipe)[0] == pytest.approx(value_and_gradient(same, recipe)[0]), changes


def test_corrections_report_what_they_leave_out() -> None:
    given = [row for seed in (6, 7, 8) for row in rows(seed)]
    for changes in CORRECTIONS:
        recipe = expand("grpo", changes)
        found = token_losses(tokens(given, flat(given, "logp")), recipe)
        expected = [weight == 0 for row in given for weight in definitions.corrections(row, recipe)]
        if changes["correction" if "correction" in changes else "off_policy_mask"] in ("none", "token-tis"):
            assert found.rejected_N is None
        else:
            assert found.rejected_N is not None
            assert found.rejected_N.tolist() == expected
            assert any(expected)
            assert not all(expected)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("far", [30.0, 100.0, 1e4, torch.inf])
def test_a_token_that_one_policy_hardly_knows_has_a_finite_kl(estimator: Any, far: float) -> None:
    """The limits of verl 0.9.1, SkyRL and NeMo RL: 20 for the logarithm of the ratio, 10 for the estimate."""
    logp = torch.tensor([-1.0, -1.0 - far], requires_grad=True)
    reference = torch.tensor([-1.0 - far, -1.0])
    expected = {"k1": [10.0, -10.0], "k2": [10.0, 10.0], "k3": [10.0, 10.0]}[estimator]
    assert kl(logp.detach(), reference, estimator).tolist() == expected
    terms = kl_loss(logp, logp.detach(), reference, estimator)
    if far != torch.inf:
        assert terms.tolist() == expected
        (slopes,) = torch.autograd.grad(terms.sum(), logp)
        assert slopes.isfinite().all()


def test_kl_estimators_have_the_value_and_the_gradient_of_the_reverse_kl() -> None:
    """In expectation over the policy's own tokens, exactly: a sum over the vocabulary."""
    logits, others = torch.tensor([0.3, -1.0, 0.8, 0.0], dtype=torch.float64), [0.0, 0.5, 0.2, -0.4]
    reference = torch.tensor(others, dtype=torch.float64).log_softmax(0)
    leaf = logits.clone().requires_grad_()
    logp = leaf.log_softmax(0)
    exact = (logp.exp() * (logp - reference)).sum()
    (slopes,) = torch.autograd.grad(exact, leaf)
    assert exact.item() == pytest.approx(definitions.exact_kl(logits.tolist(), others))
    for estimator in ("k1", "k2", "k3"):
        leaf = logits.clone().requires_grad_()
        logp = leaf.log_softmax(0)
        fixed = logp.detach()
        if estimator != "k2":
            assert float((fixed.exp() * kl(fixed, reference, estimator)).sum()) == pytest.approx(exact.item())
        sampled = (fixed.exp() * kl_loss(logp, fixed, reference, estimator)).sum()
        (gradient,) = torch.autograd.grad(sampled, leaf)
        assert torch.allclose(gradient, slopes, atol=1e-12), estimator
