"""The probability that a drafted token is accepted, given the evidence for it; learned from verification.

The evidence is one of `CELLS` cells: the trust in the best match that agrees, the token's share of the votes (with
noise: the probability that it is drawn, see `voting`), how many matches agree, and the request's *form*, how well its
drafts did lately. A cell starts with a prior; its counts fade, so that it follows a changing policy.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rhymed.histospec.drafts.trust import Tally, note, tally
from rhymed.histospec.drafts.types import Drafts
from rhymed.histospec.index import arena
from rhymed.histospec.index.arena import FORM, ONE
from rhymed.histospec.jit import native

# Lower ends of the classes.
TRUSTS = np.array([0.0, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95], np.float32)
SHARES = np.array([0.0, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.9999], np.float32)
COUNTS = np.array([1, 2, 3, 5], np.int32)
FORMS = 3
CELLS = len(TRUSTS) * len(SHARES) * len(COUNTS) * FORMS
INERTIA = 1 / 16  # weight of one token in a request's form
BAD, GOOD = -0.08, 0.04  # form: acceptance rate minus expected acceptance rate


class Calibration:
    """`table` [CELLS]: the probability of acceptance. For one thread at a time."""

    def __init__(self) -> None:
        self._tally = tally(_guess())
        self.table = self._tally.share

    def observe(self, drafts: Drafts, verified: NDArray[np.int32], accepted: NDArray[np.int32]) -> None:
        """Of request i the first `verified[i]` drafted tokens were verified, and the first `accepted[i]` accepted.
        Call it before the next batch is drafted: it also updates the form of the requests."""
        addresses = np.array([index.address for index in drafts.indexes], np.int64)
        _learn(addresses, drafts.rows, drafts.evidence, verified, accepted, self._tally)


@native
def _learn(
    addresses: NDArray[np.int64],
    rows: NDArray[np.int32],
    evidence: NDArray[np.int16],
    verified: NDArray[np.int32],
    accepted: NDArray[np.int32],
    seen: Tally,
) -> None:
    for i in range(len(verified)):
        sequence = arena.views(addresses[i]).sequences[rows[i]]
        form = float(sequence[FORM])
        for j in range(min(accepted[i] + 1, verified[i])):
            cell, right = evidence[i, j], 1.0 if j < accepted[i] else 0.0
            form += INERTIA * (ONE * (right - seen.share[cell]) - form)
            note(seen, cell, right)
        sequence[FORM] = int(form)


def _guess() -> NDArray[np.float64]:
    """The prior: high for a trusted match that no other contradicts."""
    trust, share, count, form = np.ix_(TRUSTS, np.clip(SHARES, 0.3, 0.99), np.arange(len(COUNTS)), np.arange(FORMS))
    logit = -1.2 + 2.5 * trust + 3.0 * (share - 0.5) + 0.25 * count + 0.5 * (form - 1)
    return np.asarray(1 / (1 + np.exp(-logit))).reshape(-1)


@native
def cell(trust: float, share: float, count: int, form: int) -> int:
    """The cell of this evidence; `form` as the sequence table has it."""
    d = 0 if form < BAD * ONE else 2 if form > GOOD * ONE else 1
    a = len(TRUSTS) - 1
    while a > 0 and trust < TRUSTS[a]:
        a -= 1
    b = len(SHARES) - 1
    while b > 0 and share < SHARES[b]:
        b -= 1
    c = len(COUNTS) - 1
    while c > 0 and count < COUNTS[c]:
        c -= 1
    return ((a * len(SHARES) + b) * len(COUNTS) + c) * FORMS + d
