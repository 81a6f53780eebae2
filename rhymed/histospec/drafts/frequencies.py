"""How often observations of a class were right: counts with a prior, in which older observations fade."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rhymed.histospec.jit import native

# Other modules' compiled functions contain these; their cache (`__pycache__/*.nb?`) does not notice a change here.
PRIOR = 6.0  # observations that the prior counts as
MEMORY = 2_000.0  # observations of a class after which the older ones are halved


class Tally(NamedTuple):
    """By class, all [classes]."""

    tried: NDArray[np.float64]
    taken: NDArray[np.float64]
    prior: NDArray[np.float64]
    share: NDArray[np.float32]  # the estimate


def tally(guess: NDArray[np.float64]) -> Tally:
    """Without observations. `guess` [classes]: prior probabilities."""
    return Tally(np.zeros(len(guess)), np.zeros(len(guess)), guess, guess.astype(np.float32))


@native
def note(of: Tally, at: int, right: float) -> float:
    """Counts an observation of class `at` that was right (1) or wrong (0). Returns the new estimate."""
    if of.tried[at] >= MEMORY:
        of.tried[at] *= 0.5
        of.taken[at] *= 0.5
    of.tried[at] += 1.0
    of.taken[at] += right
    share: float = (of.taken[at] + PRIOR * of.prior[at]) / (of.tried[at] + PRIOR)
    of.share[at] = share
    return share
