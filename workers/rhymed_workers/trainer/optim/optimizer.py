"""Builds the optimizer that the configuration names, for any parameters: a policy's, an adapter's, a value model's;
and makes its steps.

AdamW is torch's. Its 8-bit and paged forms are bitsandbytes': 8-bit ones keep both moments in blocks of 256 numbers
with a scale each (Dettmers et al. 2022, arXiv 2110.02861), and those of tensors below 4,096 numbers in float32; paged
ones keep them in memory that a GPU shares with the machine. On a CPU there is nothing to page.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterable
from typing import Any

import torch

from rhymed.config import Trainer
from rhymed.errors import ConfigError
from rhymed_workers.trainer.optim.packages import missing_packages

log = logging.getLogger(__name__)

CLASSES = {"adamw_8bit": "AdamW8bit", "paged_adamw": "PagedAdamW32bit", "paged_adamw_8bit": "PagedAdamW8bit"}


def build(
    config: Trainer, parameters: Iterable[torch.nn.Parameter], lr: float | None = None
) -> torch.optim.Optimizer:
    """`lr`: if it differs from `config.lr`. Raises `ConfigError` if the optimizer's package is not installed."""
    if missing := missing_packages(config):
        raise ConfigError(missing[0])
    rate = config.lr if lr is None else lr
    trained = list(parameters)
    if config.optimizer == "adamw":
        return torch.optim.AdamW(trained, lr=rate, betas=config.betas, weight_decay=config.weight_decay, fused=True)
    made: torch.optim.Optimizer = _library_class(config.optimizer, trained)(
        trained, lr=rate, betas=config.betas, weight_decay=config.weight_decay
    )
    return made


def step(optimizer: torch.optim.Optimizer, loss: float, max_norm: float, name: str) -> float | None:
    """Clip and step; returns the gradient's norm. `name`: of the update, for the log.

    An update with a loss or norm that is not finite is skipped, so that it never reaches the weights: None.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    clipped: Any = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
    norm = float(clipped.full_tensor() if hasattr(clipped, "full_tensor") else clipped)  # parts on several ranks
    finite = math.isfinite(norm) and math.isfinite(loss)
    if finite:
        optimizer.step()
    else:
        log.error("%s: loss %s, gradient norm %s: this update is skipped", name, loss, norm)
    optimizer.zero_grad(set_to_none=True)
    return norm if finite else None


def _library_class(name: str, parameters: list[torch.nn.Parameter]) -> Any:
    if name.startswith("paged") and not any(parameter.is_cuda for parameter in parameters):
        log.warning("trainer.optimizer = %r: without a GPU nothing is paged", name)
        warnings.filterwarnings("ignore", "Paged optimizers are not supported on CPU")
    import bitsandbytes.optim

    return getattr(bitsandbytes.optim, CLASSES[name])
