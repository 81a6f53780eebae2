"""The learning rate of every step of a run, as a factor of the configured rate. Pure: no torch, no state.

A resumed run computes the same factor from the same step. The number of steps is the run's at that moment: a run that
is resumed with more steps follows the longer schedule from then on.
"""

from __future__ import annotations

import math

from rhymed.config import Trainer
from rhymed.errors import TrainerError


def factor(config: Trainer, step: int, steps: int) -> float:
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
