"""Builds the optimizer that the configuration names, for any parameters: a policy's, an adapter's, a value model's;
and makes its steps.

AdamW is torch's. Its 8-bit and paged forms are bitsandbytes': 8-bit ones keep both moments in blocks of 256 numbers
with a scale each (Dettmers et al. 2022, arXiv 2110.02861), and those of tensors below 4,096 numbers in float32; paged
ones keep them in memory that a GPU shares with the machine. On a CPU there is nothing to page.

`lr_factor` is the learning rate of each step.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterable
from typing import Any

import torch

from rhymed.core.config import Trainer
from rhymed.core.errors import ConfigError, TrainerError
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


# The learning rate of every step of a run, as a factor of the configured rate. Pure: no torch, no state.
#
# A resumed run computes the same factor from the same step. The number of steps is the run's at that moment: a run
# that is resumed with more steps follows the longer schedule from then on.


def lr_factor(config: Trainer, step: int, steps: int) -> float:
    """What `lr` is multiplied by in step `step` (from 0) of `steps`; 0 steps: unknown.

    Linear warm-up to 1 in `warmup_steps` steps, the last of which has 1. Then constant, or a line or half a cosine
    from 1 in the next step to `min_lr_ratio` at `steps`, the step after the last one, so that every step has a rate.
    As `get_linear_schedule_with_warmup` and `get_cosine_schedule_with_warmup` in transformers, whose warm-up begins
    at 0. Raises `TrainerError` if the schedule needs the number of steps and it is unknown.
    """
    warmup = config.warmup_steps
    if step < warmup or config.schedule == "constant":
        return min(1.0, (step + 1) / max(1, warmup))
    steps = steps or config.steps or 0
    if not steps:
        raise TrainerError(
            f"trainer.schedule = {config.schedule!r} needs the number of the run's steps, which is unknown"
        )
    done = min(1.0, (step - warmup) / max(1, steps - warmup))
    left = 1 - done if config.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
    return config.min_lr_ratio + (1 - config.min_lr_ratio) * left
