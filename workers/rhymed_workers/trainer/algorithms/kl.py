"""Estimates of the KL divergence to the reference model from one sampled token (Schulman 2020, "Approximating KL").

k1 = log p - log q, k2 = k1^2 / 2, k3 = e^-k1 + k1 - 1.
"""

from __future__ import annotations

from torch import Tensor

from rhymed.algorithms.recipe import Estimator
from rhymed_workers.trainer.algorithms.tokens import log_ratios


def kl(logp_N: Tensor, reference_N: Tensor, estimator: Estimator) -> Tensor:
    if estimator == "k3":
        return k3(logp_N, reference_N)
    difference_N = logp_N - reference_N
    return difference_N if estimator == "k1" else difference_N**2 / 2


def k3(logp_N: Tensor, other_N: Tensor) -> Tensor:
    """Not negative, low variance."""
    difference = other_N - logp_N
    return difference.expm1() - difference  # expm1: exact for close policies


def kl_loss(logp_N: Tensor, old_N: Tensor, reference_N: Tensor, estimator: Estimator) -> Tensor:
    """Weighted by the ratio, so that the gradient is an unbiased one of the reverse KL.

    k1 and k3 are multiplied by the ratio with its gradient (DeepSeek-V3.2, arXiv 2512.02556; TRL's default): without
    it, the gradient of k1 is 0 in expectation, and that of k3 is the forward KL's. The gradient of k2 is right by
    itself, so the ratio is only a weight there; it is the same as that of k3.
    """
    ratio_N = log_ratios(logp_N, old_N).exp()
    return (ratio_N.detach() if estimator == "k2" else ratio_N) * kl(logp_N, reference_N, estimator)
