"""How often something of a class was right: counted against a prior guess, the old fading behind the new."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rhymed.histospec.jit import native

# Compiled into others' functions, whose cache on disk (`__pycache__/*.nb?`) does not notice a change here.
PRIOR = 6.0  # observations that the guess is worth
MEMORY = 2_000.0  # observations of a class after which older ones have lost their weight


class Tally(NamedTuple):
    """By class, all [classes]."""

    tried: NDArray[np.float64]
    taken: NDArray[np.float64]
    prior: NDArray[np.float64]
    share: NDArray[np.float32]  # the estimate


def tally(guess: NDArray[np.float64]) -> Tally:
    """Nothing observed yet. `guess` [classes]: probabilities."""
    return Tally(np.zeros(len(guess)), np.zeros(len(guess)), guess, guess.astype(np.float32))


@native
def note(of: Tally, at: int, right: float) -> float:
    """One more of class `at` that was right (1) or not (0); the estimate with it."""
    if of.tried[at] >= MEMORY:
        of.tried[at] *= 0.5
        of.taken[at] *= 0.5
    of.tried[at] += 1.0
    of.taken[at] += right
    share: float = (of.taken[at] + PRIOR * of.prior[at]) / (of.tried[at] + PRIOR)
    of.share[at] = share
    return share
