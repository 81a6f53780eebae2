"""Losses written a second time, from their publications: plain Python over one sample after the other, in float64.

`fixed` stands for the log-probs where a definition stops the gradient: a finite difference moves `logp` alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, log, nan

from rhymed.core.algorithms import Recipe


@dataclass(frozen=True)
class Row:
    """One sample; lists with a number for each response token."""

    logp: list[float]
    fixed: list[float]
    old: list[float]
    engine: list[float]
    reference: list[float]
    advantages: list[float]
    kept: bool = True


def batch_loss(rows: list[Row], recipe: Recipe, longest: int) -> float:
    totals = [(row, sum(token_losses(row, recipe)), len(row.logp)) for row in rows]
    kept = [(total, length) for row, total, length in totals if row.kept and length]
    if recipe.aggregation == "token-mean":
        return sum(total for total, _ in kept) / max(1, sum(length for _, length in kept))
    if recipe.aggregation == "seq-mean-token-mean":
        return sum(total / length for total, length in kept) / len(rows)
    norm = 1 if recipe.aggregation == "seq-mean-token-sum" else longest
    return sum(total for total, _ in kept) / norm / len(rows)


def token_losses(row: Row, recipe: Recipe) -> list[float]:
    policy, weights = POLICY_LOSSES[recipe.loss](row, recipe), corrections(row, recipe)
    losses = [loss * weight for loss, weight in zip(policy, weights, strict=True)]
    if recipe.kl_coef == 0 or recipe.kl_in == "reward":
        return losses
    return [
        loss + recipe.kl_coef * term for loss, term in zip(losses, kl_terms(row, recipe.kl_estimator), strict=True)
    ]


def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else nan


def differences(one: list[float], other: list[float]) -> list[float]:
    return [a - b for a, b in zip(one, other, strict=True)]


def clip(row: Row, recipe: Recipe) -> list[float]:
    own = differences(row.logp, row.fixed)
    whole = differences(row.fixed, row.old)
    if recipe.ratio == "token":
        ratios = [exp(step) for step in differences(row.logp, row.old)]
    elif recipe.ratio == "sequence":
        ratios = [exp(mean(whole) + step) for step in own]
    else:
        ratios = [exp(sum(whole) + len(own) * step) for step in own]
    losses = []
    for ratio, advantage in zip(ratios, row.advantages, strict=True):
        inside = min(max(ratio, 1 - recipe.clip_eps_low), 1 + recipe.clip_eps_high)
        loss = max(-ratio * advantage, -inside * advantage)
        if recipe.dual_clip and advantage < 0:
            loss = min(loss, -recipe.dual_clip * advantage)
        losses.append(loss)
    return losses


def cispo(row: Row, recipe: Recipe) -> list[float]:
    return [
        -min(max(exp(fixed - old), recipe.cispo_min), recipe.cispo_max) * advantage * logp
        for logp, fixed, old, advantage in zip(row.logp, row.fixed, row.old, row.advantages, strict=True)
    ]


def gmpo(row: Row, recipe: Recipe) -> list[float]:
    """The gradient of the sample is that of n times the mean, as its tokens' losses are averaged afterwards."""

    def clipped(steps: list[float]) -> list[float]:
        found = []
        for step, advantage in zip(steps, row.advantages, strict=True):
            inside = min(max(step, -recipe.clip_eps_low), recipe.clip_eps_high)
            found.append(min(step, inside) if advantage > 0 else max(step, inside))
        return found

    moved, fixed = clipped(differences(row.logp, row.old)), clipped(differences(row.fixed, row.old))
    return [
        -exp(mean(fixed) + now - before) * advantage
        for now, before, advantage in zip(moved, fixed, row.advantages, strict=True)
    ]


def sapo(row: Row, recipe: Recipe) -> list[float]:
    losses = []
    for step, advantage in zip(differences(row.logp, row.old), row.advantages, strict=True):
        tau = recipe.sapo_tau_pos if advantage > 0 else recipe.sapo_tau_neg
        losses.append(-4 / tau / (1 + exp(-tau * (exp(step) - 1))) * advantage)
    return losses


def dppo(row: Row, recipe: Recipe) -> list[float]:
    losses = []
    for logp, fixed, engine, advantage in zip(row.logp, row.fixed, row.engine, row.advantages, strict=True):
        moved = exp(fixed) - exp(engine)
        left_out = moved > recipe.dppo_mask_high if advantage > 0 else moved < -recipe.dppo_mask_low
        gain = 0.0 if left_out else advantage * exp(logp - engine)
        losses.append(recipe.dppo_kl_tau * (logp - engine) ** 2 - gain)
    return losses


def likelihood(row: Row, recipe: Recipe) -> list[float]:
    return [-logp for logp in row.logp]


POLICY_LOSSES: dict[str, Callable[[Row, Recipe], list[float]]] = {
    "clip": clip,
    "cispo": cispo,
    "gmpo": gmpo,
    "sapo": sapo,
    "dppo": dppo,
    "likelihood": likelihood,
}


def corrections(row: Row, recipe: Recipe) -> list[float]:
    steps = differences(row.old, row.engine)
    if recipe.correction == "none":
        weights = [1.0] * len(steps)
    elif recipe.correction == "token-tis":
        weights = [min(exp(step), recipe.tis_cap) for step in steps]
    elif recipe.correction == "icepop":
        weights = [exp(step) if recipe.icepop_min <= exp(step) <= recipe.icepop_max else 0.0 for step in steps]
    elif recipe.correction == "sequence-mask":
        whole = exp(sum(steps))
        weights = [whole if whole <= recipe.sequence_mask_cap else 0.0] * len(steps)
    else:
        inside = recipe.geometric_min <= exp(mean(steps)) <= recipe.geometric_max
        weights = [float(inside)] * len(steps)
    if not recipe.off_policy_mask:
        return weights
    moved = mean(differences(row.engine, row.fixed))
    kept = [advantage >= 0 or moved <= recipe.off_policy_mask for advantage in row.advantages]
    return [weight * float(keep) for weight, keep in zip(weights, kept, strict=True)]


def kl_terms(row: Row, estimator: str) -> list[float]:
    terms = []
    for logp, fixed, old, reference in zip(row.logp, row.fixed, row.old, row.reference, strict=True):
        k1 = min(20.0, max(-20.0, logp - reference))
        value = {"k1": k1, "k2": k1 * k1 / 2, "k3": exp(-k1) + k1 - 1}[estimator]
        terms.append(min(10.0, max(-10.0, value)) * exp((fixed if estimator == "k2" else logp) - old))
    return terms


def exact_kl(logits: list[float], others: list[float]) -> float:
    """KL(p || q) of two distributions."""
    p, q = softmax(logits), softmax(others)
    return sum(a * log(a / b) for a, b in zip(p, q, strict=True))


def softmax(logits: list[float]) -> list[float]:
    total = sum(map(exp, logits))
    return [exp(logit) / total for logit in logits]
