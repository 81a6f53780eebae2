"""Steps as numbers: which ones are evaluations, and which policy versions may sample for a step (staleness)."""

from __future__ import annotations

EVAL = 1 << 30
"""The step `EVAL + v` is the evaluation of policy version v on held-out prompts.

So a query for steps before a training step never returns evaluations; one from EVAL on returns earlier evaluations.
"""


def window(step: int, max_staleness: int) -> tuple[int, int]:
    """Oldest and newest policy version that may sample for this step; an evaluation has exactly one."""
    return (step - EVAL, step - EVAL) if step >= EVAL else (max(0, step - max_staleness), step)
