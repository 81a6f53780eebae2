"""Steps as numbers: training steps, evaluations, imported samples; and which policy versions may sample for a step
(staleness).

One number orders everything that a prompt was answered for, in the store's keys and in messages: below 0 imported
from an earlier run, from 0 on the training steps, from `EVAL` on the evaluations.
"""

from __future__ import annotations

EVAL = 1 << 30
"""The step `EVAL + v` is the evaluation of policy version v on held-out prompts.

So a query for steps before a training step never returns evaluations; one from EVAL on returns earlier evaluations.
"""


def is_training(step: int) -> bool:
    return 0 <= step < EVAL


def is_evaluation(step: int) -> bool:
    return step >= EVAL


def evaluation_step(version: int) -> int:
    """The step that is the evaluation of this policy version."""
    return EVAL + version


def evaluated_version(step: int) -> int:
    """Of an evaluation, the policy version."""
    return step - EVAL


def window(step: int, max_staleness: int) -> tuple[int, int]:
    """Oldest and newest policy version that may sample for this step; an evaluation has exactly one."""
    if is_evaluation(step):
        return evaluated_version(step), evaluated_version(step)
    return max(0, step - max_staleness), step
