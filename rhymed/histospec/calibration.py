"""How probable it is that a drafted token is accepted, given the evidence for it; learned from verification.

Evidence is one of `CELLS` cells: how long the match is, which share of the votes the token has, how many places
agree, whether the best of them is another response, and how well the request could be drafted lately. A cell
starts with a guess worth `PRIOR` observations; its counts fade, so that it follows a policy that changes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rhymed.histospec.native import native

MATCHES = np.array(
    [1, 2, 3, 4, 5, 7, 9, 13, 20, 32], np.int32
)  # lower ends; the last is the longest that is compared
SHARES = np.array([0.0, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97, 0.9999], np.float32)
COUNTS = np.array([1, 2, 3, 5], np.int32)
FORMS = 3
CELLS = len(MATCHES) * len(SHARES) * len(COUNTS) * 2 * FORMS
PRIOR = 6.0
MEMORY = 20_000.0  # observations of a cell after which older ones have lost their weight


class Calibration:
    """`table` [CELLS]: the probability of each cell's evidence. One thread at a time."""

    def __init__(self) -> None:
        self._prior = _guess()
        self._tried = np.zeros(CELLS)
        self._taken = np.zeros(CELLS)
        self.table: NDArray[np.float32] = self._prior.astype(np.float32)

    def observe(self, evidence: NDArray[np.int16], verified: NDArray[np.int32], accepted: NDArray[np.int32]) -> None:
        """Of request i the first `verified[i]` tokens of evidence [R, K] were verified, `accepted[i]` accepted."""
        _count(evidence, verified, accepted, self._tried, self._taken, self._prior, self.table)


@native
def _count(
    evidence: NDArray[np.int16],
    verified: NDArray[np.int32],
    accepted: NDArray[np.int32],
    tried: NDArray[np.float64],
    taken: NDArray[np.float64],
    prior: NDArray[np.float64],
    table: NDArray[np.float32],
) -> None:
    for i in range(len(verified)):
        for j in range(min(accepted[i] + 1, verified[i])):
            cell = evidence[i, j]
            if tried[cell] >= MEMORY:
                tried[cell] *= 0.5
                taken[cell] *= 0.5
            tried[cell] += 1.0
            taken[cell] += 1.0 if j < accepted[i] else 0.0
            table[cell] = (taken[cell] + PRIOR * prior[cell]) / (tried[cell] + PRIOR)


def _guess() -> NDArray[np.float64]:
    """Before anything was observed: a long match that nothing contradicts holds, a short one may."""
    match, share, count, other, form = np.ix_(
        np.log2(MATCHES.astype(float)),
        np.clip(SHARES, 0.3, 0.99),
        np.arange(len(COUNTS)),
        np.arange(2),
        np.arange(FORMS),
    )
    logit = -1.2 + 0.5 * match + 3.0 * (share - 0.5) + 0.25 * count + 0.4 * other + 0.5 * (form - 1)
    return np.asarray(1 / (1 + np.exp(-logit))).reshape(-1)


@native
def cell(match: int, share: float, count: int, other: int, form: int) -> int:
    """The cell of this evidence."""
    a = len(MATCHES) - 1
    while a > 0 and match < MATCHES[a]:
        a -= 1
    b = len(SHARES) - 1
    while b > 0 and share < SHARES[b]:
        b -= 1
    c = len(COUNTS) - 1
    while c > 0 and count < COUNTS[c]:
        c -= 1
    return (((a * len(SHARES) + b) * len(COUNTS) + c) * 2 + other) * FORMS + form
