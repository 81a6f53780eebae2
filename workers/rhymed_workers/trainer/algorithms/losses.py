"""Every loss by its name in `trainer.loss`, the weights of tokens, and how a recipe's parts make one loss of a token.

A loss is a pure function of `Tokens` and the recipe. To add one: a function here, its entry in `LOSSES`, and its name
in `rhymed.core.algorithms.Loss`. `correction` and `token_weights` make the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from rhymed.core.algorithms import Aggregation, Estimator, Ratio, Recipe
from rhymed_workers.trainer.algorithms.tokens import MAX_LOG, Terms, Tokens, log_ratios

# SAPO: a smooth gate instead of a clip, with a slope of 1 at a ratio of 1 (arXiv 2511.20347).


def sapo(given: Tokens, recipe: Recipe) -> Terms:
    advantages_N = given.advantages_N
    ratio_N = log_ratios(given.logp_N, given.old_N).exp()
    tau_N = torch.full_like(advantages_N, recipe.sapo_tau_neg).masked_fill(advantages_N > 0, recipe.sapo_tau_pos)
    gate_N = torch.sigmoid(tau_N * (ratio_N - 1)) * 4 / tau_N
    return Terms(-gate_N * advantages_N, torch.zeros_like(advantages_N, dtype=torch.bool))


# GMPO: the geometric mean of the tokens' ratios, each clipped before, in log space (arXiv 2507.20673).


def gmpo(given: Tokens, recipe: Recipe) -> Terms:
    """Needs whole samples once the policy was updated.

    As with a sequence's ratio, each token has the value of the sequence and its own part of the gradient.
    """
    log_N, advantages_N = log_ratios(given.logp_N, given.old_N), given.advantages_N
    limited_N = log_N.clamp(-recipe.clip_eps_low, recipe.clip_eps_high)
    chosen_N = torch.where(advantages_N > 0, torch.min(log_N, limited_N), torch.max(log_N, limited_N))
    fixed_N = chosen_N.detach()
    whole_N = given.sample_means(fixed_N) if given.updated else fixed_N
    return Terms(-(whole_N + chosen_N - fixed_N).exp() * advantages_N, fixed_N != log_N.detach())


# DPPO: tokens whose probability has moved too far from the engine's are left out (arXiv 2602.04879).
#
# With a term that pulls towards the engine's policy, as prime-rl's default loss has it. The ratio is the one to the
# engine's probabilities, so it corrects for them as well.


def dppo(given: Tokens, recipe: Recipe) -> Terms:
    """A token whose engine log-prob is not known is compared with the trainer's before the update."""
    engine_N = given.engine_N.where(given.engine_N.isfinite(), given.old_N)
    log_N, advantages_N = log_ratios(given.logp_N, engine_N), given.advantages_N
    moved_N = given.logp_N.detach().exp() - engine_N.exp()
    left_out_N = torch.where(advantages_N > 0, moved_N > recipe.dppo_mask_high, moved_N < -recipe.dppo_mask_low)
    gain_N = (log_N.exp() * advantages_N).masked_fill(left_out_N, 0.0)
    return Terms(recipe.dppo_kl_tau * log_N**2 - gain_N, left_out_N & (advantages_N != 0))


# PPO's clipped loss, with ratios of tokens or of sequences.
#
# Schulman et al. 2017 (arXiv 1707.06347). Upper clip of its own: DAPO (arXiv 2503.14476). Limit for negative
# advantages: dual clip (arXiv 1912.09729). Ratio of the sequence: GSPO (arXiv 2507.18071) and TRL's `RLOOTrainer`.


def clip(given: Tokens, recipe: Recipe) -> Terms:
    low, high = 1 - recipe.clip_eps_low, 1 + recipe.clip_eps_high
    ratio_N, advantages_N = ratios(given, recipe.ratio), given.advantages_N
    clipped_N = ((ratio_N < low) & (advantages_N < 0)) | ((ratio_N > high) & (advantages_N > 0))
    gain_N = torch.min(ratio_N * advantages_N, ratio_N.clamp(low, high) * advantages_N)
    if recipe.dual_clip:
        least_N = recipe.dual_clip * advantages_N
        limited_N = (advantages_N < 0) & (gain_N < least_N)
        gain_N, clipped_N = gain_N.where(~limited_N, least_N), clipped_N | limited_N
    return Terms(-gain_N, clipped_N)


def ratios(given: Tokens, level: Ratio) -> Tensor:
    """(N,) importance ratios. Those of sequences need whole samples once the policy was updated.

    A sequence's ratio has the value of the whole sequence at each of its tokens, and each token's own part of the
    gradient, so that the mean over the tokens has the value and the gradient of the sequence's ratio: a token's
    advantage and weights stay its own (GSPO, section 4.3).
    """
    log_N = log_ratios(given.logp_N, given.old_N)
    if level == "token":
        return log_N.exp()
    own_N = log_N - log_N.detach()
    if not given.updated:
        whole_N = torch.zeros_like(own_N)  # samples may be incomplete
    elif level == "sequence":
        whole_N = given.sample_means(log_N.detach())
    else:
        whole_N = given.sample_sums(log_N.detach())
    if level == "sequence-product":
        own_N = own_N * given.lengths_N
    return (whole_N.clamp(-MAX_LOG, MAX_LOG) + own_N).exp()


# CISPO: the ratio is a weight with limits, so every token keeps a gradient (MiniMax-M1, arXiv 2506.13585).


def cispo(given: Tokens, recipe: Recipe) -> Terms:
    ratio_N = log_ratios(given.logp_N, given.old_N).detach().exp()
    weight_N = ratio_N.clamp(recipe.cispo_min, recipe.cispo_max)
    return Terms(-weight_N * given.advantages_N * given.logp_N, weight_N != ratio_N)


# The likelihood of right answers, and which loss a recipe has.


def likelihood(given: Tokens, recipe: Recipe) -> Terms:
    """Negative log-likelihood: of answers that are right, whatever their reward."""
    return Terms(-given.logp_N, torch.zeros_like(given.logp_N, dtype=torch.bool))


LOSSES: dict[str, Callable[[Tokens, Recipe], Terms]] = {
    "clip": clip,
    "cispo": cispo,
    "gmpo": gmpo,
    "sapo": sapo,
    "dppo": dppo,
    "likelihood": likelihood,
}


class TokenLosses(NamedTuple):
    """Per token, before weighting."""

    loss_N: Tensor  # carries the gradient
    clipped_N: Tensor  # bool: the loss removed or limited the gradient
    rejected_N: Tensor | None  # bool: left out by the correction; None: it leaves none out
    kl_N: Tensor | None  # to the reference; None if it is no part of the loss


def token_losses(given: Tokens, recipe: Recipe) -> TokenLosses:
    """The correction weights the policy's loss, not the KL term. Needs whole samples where the recipe says so."""
    loss_N, clipped_N = LOSSES[recipe.loss](given, recipe)
    weights_N, rejected_N = correction(given, recipe), None
    if weights_N is not None:
        loss_N = loss_N * weights_N
        rejected_N = weights_N == 0 if recipe.rejects else None
    if not recipe.kl_coef or recipe.kl_in == "reward":
        return TokenLosses(loss_N, clipped_N, rejected_N, None)
    assert given.reference_N is not None, "a KL term needs the reference model"
    kl_N = kl_loss(given.logp_N, given.old_N, given.reference_N, recipe.kl_estimator)
    return TokenLosses(loss_N + recipe.kl_coef * kl_N, clipped_N, rejected_N, kl_N.detach())


# Weights of tokens against the difference between the engine's and the trainer's policy of the same version.
#
# The engine's probabilities differ slightly from the trainer's: other kernels, other precision. An engine log-prob
# that is not a number counts as equal. Ratios are old / engine, without gradient.
#
# * token-tis: the token's ratio, at most a cap (Yao et al. 2025). * sequence-mask: the product of the sample's
# ratios, 0 if it is above a cap (TRL's default). * icepop: the token's ratio, 0 outside a band (Ring-1T, arXiv
# 2510.18855). * geometric: 1, or 0 if the geometric mean of the sample's ratios is outside a band (verl's rejection).
# * off-policy mask: 0 for samples with negative advantage whose policy has moved away from the engine's
# (DeepSeek-V3.2, arXiv 2512.02556).


def correction(given: Tokens, recipe: Recipe) -> Tensor | None:
    """(N,) weights; None: all are 1. Those of sequences and the off-policy mask need whole samples."""
    weights_N = _weights(given, recipe)
    if recipe.off_policy_mask:
        kept_N = off_policy_kept(given, recipe.off_policy_mask)
        return kept_N.to(given.old_N.dtype) if weights_N is None else weights_N * kept_N
    return weights_N


def _weights(given: Tokens, recipe: Recipe) -> Tensor | None:
    kind = recipe.correction
    if kind == "none":
        return None
    log_N = log_ratios(given.old_N, given.engine_N).nan_to_num(nan=0.0)
    if kind == "token-tis":
        return log_N.exp().clamp(max=recipe.tis_cap)
    if kind == "icepop":
        return _within(log_N.exp(), recipe.icepop_min, recipe.icepop_max)
    if kind == "sequence-mask":
        return _within(given.sample_sums(log_N).clamp(max=MAX_LOG).exp(), 0.0, recipe.sequence_mask_cap)
    mean_N = given.sample_means(log_N).exp()
    return ((mean_N >= recipe.geometric_min) & (mean_N <= recipe.geometric_max)).to(log_N.dtype)


def _within(ratio_N: Tensor, low: float, high: float) -> Tensor:
    return ratio_N.masked_fill((ratio_N < low) | (ratio_N > high), 0.0)


def off_policy_kept(given: Tokens, limit: float) -> Tensor:
    """(N,) bool: the advantage is not negative, or the sample's mean of log(engine / policy) is at most the limit."""
    moved_N = log_ratios(given.engine_N, given.logp_N.detach()).nan_to_num(nan=0.0)
    return (given.advantages_N >= 0) | (given.sample_means(moved_N) <= limit)


# Weights of tokens, so that the weighted sum of their losses is the batch's loss.
#
# Normalisation is in the weights, so micro-batches of any size add up to the same gradient.


def token_weights(
    lengths_B: Tensor, aggregation: Aggregation, *, longest: int, kept_B: Tensor | None = None
) -> Tensor:
    """(N,) weights of the tokens of the B samples of one update.

    `longest`: limit of response tokens, the constant of seq-mean-token-sum-norm. `kept_B`: False for samples that are
    left out: their tokens weigh 0 and do not count in the mean over tokens; they count as samples, as empty ones do.
    """
    kept_B = torch.ones_like(lengths_B, dtype=torch.bool) if kept_B is None else kept_B
    count = len(lengths_B)
    if aggregation == "token-mean":
        weights_B = torch.full((count,), 1.0 / max(1, int(lengths_B[kept_B].sum())))
    elif aggregation == "seq-mean-token-mean":
        weights_B = 1.0 / (count * lengths_B.clamp(min=1).float())
    elif aggregation == "seq-mean-token-sum":
        weights_B = torch.full((count,), 1.0 / max(1, count))
    else:
        weights_B = torch.full((count,), 1.0 / (max(1, count) * longest))
    return weights_B.where(kept_B, 0.0).repeat_interleave(lengths_B)


# Estimates of the KL divergence to the reference model from one sampled token (Schulman 2020, "Approximating KL").
#
# k1 = log p - log q, k2 = k1^2 / 2, k3 = e^-k1 + k1 - 1. As in NeMo RL, k1 is limited to +-20 before anything is made
# of it, and every estimate to +-10 after; verl and SkyRL do the same to k3. One token with a very small probability
# would otherwise outweigh all others, or be infinite.

MOST = 10.0  # of an estimate


def kl(logp_N: Tensor, reference_N: Tensor, estimator: Estimator) -> Tensor:
    """(N,) nats, -10 to 10; NaN where a log-prob is."""
    match estimator:
        case "k1":
            found_N = log_ratios(logp_N, reference_N)
        case "k2":
            found_N = log_ratios(logp_N, reference_N) ** 2 / 2
        case "k3":
            found_N = k3(logp_N, reference_N)
    return found_N.clamp(-MOST, MOST)


def k3(logp_N: Tensor, other_N: Tensor) -> Tensor:
    """Not negative, low variance, finite."""
    difference = log_ratios(other_N, logp_N)
    return difference.expm1() - difference  # expm1: exact for close policies


def kl_loss(logp_N: Tensor, old_N: Tensor, reference_N: Tensor, estimator: Estimator) -> Tensor:
    """Weighted by the ratio, so that the gradient is an unbiased one of the reverse KL.

    k1 and k3 are multiplied by the ratio with its gradient (DeepSeek-V3.2, arXiv 2512.02556; TRL's default): without
    it, the gradient of k1 is 0 in expectation, and that of k3 is the forward KL's. The gradient of k2 is right by
    itself, so the ratio is only a weight there; it is the same as that of k3.
    """
    ratio_N = log_ratios(logp_N, old_N).exp()
    return (ratio_N.detach() if estimator == "k2" else ratio_N) * kl(logp_N, reference_N, estimator)
