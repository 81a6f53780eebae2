"""The staleness contract: which policy versions may sample for a step. Used by ledger, workers and trainer."""

from __future__ import annotations

from rhymed.messages import EVAL


def window(step: int, max_staleness: int) -> tuple[int, int]:
    """Oldest and newest policy version that may sample for this step; an evaluation has exactly one."""
    return (step - EVAL, step - EVAL) if step >= EVAL else (max(0, step - max_staleness), step)
