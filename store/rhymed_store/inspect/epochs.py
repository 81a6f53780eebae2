"""Numbers and names of a prompt's epochs. Pure.

An epoch is the ordinal of a prompt's training step, from 0; titles count from 1. Imported history keeps its negative
step, so -1 comes right before epoch 0; evaluations keep their step, from EVAL, and come after all epochs. Engines
with a store of their own have no steps: they count from ROUNDS how often a prompt was generated.
"""

from __future__ import annotations

from collections.abc import Iterable

from rhymed.messages import EVAL
from rhymed.text import epoch_name

ROUNDS = -(1 << 30)
"""Step of the first time that a prompt was generated; imports never reach so far down."""


def epochs_of(steps: Iterable[int]) -> dict[int, int]:
    """Step -> epoch, of one prompt, ascending."""
    distinct = sorted(set(steps))
    trained = [step for step in distinct if 0 <= step < EVAL]
    numbers = {step: number for number, step in enumerate(trained)}
    return {step: numbers.get(step, step) for step in distinct}


def is_trained(epoch: int) -> bool:
    return 0 <= epoch < EVAL


def title(epoch: int) -> str:
    if epoch >= EVAL:
        return f"eval v{epoch - EVAL}"
    if epoch < ROUNDS // 2:
        return f"round {epoch - ROUNDS + 1}"
    return epoch_name(epoch) if epoch >= 0 else f"imported {epoch}"
