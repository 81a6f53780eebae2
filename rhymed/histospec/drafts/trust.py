"""What the vote of a place weighs: how often places like it were right, learned from every token that is made.

A place is of a class: how many tokens match behind it, how alike the two texts were lately, and whose text it is in.
The next token tells of every place that voted whether it was right, verified drafts or not. A vote weighs the odds of
its class to the power `POWER`: in some texts a long match says all, in others only that the texts were alike, and a
policy that changes its ways changes this, too.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rhymed.histospec.drafts.frequencies import Tally, note, tally
from rhymed.histospec.index.arena import LONGEST, ONE, Array
from rhymed.histospec.jit import native

MATCHES = np.array([0, 2, 3, 4, 5, 7, 10, 15, 21], np.int32)  # lower ends of the classes
MATCH_CLASS = np.searchsorted(MATCHES, np.arange(LONGEST + 1), side="right") - 1
LIKENESSES = 16
OWN, PROMPT, OTHER = range(3)  # whose text: the request's, its prompt's, another response's
KINDS = 3
CLASSES = len(MATCHES) * LIKENESSES * KINDS
POWER = 2.0


class Votes(NamedTuple):
    """The places that voted for the next tokens. Rows are requests; of their columns `counts` are filled."""

    tokens: NDArray[np.int32]  # [R, PLACES]
    classes: NDArray[np.int16]  # [R, PLACES]
    counts: NDArray[np.int32]  # [R]


class Trust:
    """`right` [CLASSES]: how probable it is that a place of the class is right; `weight` [CLASSES]: of its vote."""

    def __init__(self) -> None:
        self._tally = tally(_guess())
        self.right = self._tally.share
        self.weight: NDArray[np.float32] = (self.right / (1 - self.right)) ** np.float32(POWER)

    def observe(self, votes: Votes, tokens: NDArray[np.int32]) -> None:
        """`tokens` [R]: what came behind the places that voted; -1 where that is not known."""
        _learn(*votes, tokens, self._tally, self.weight)


@native
def _learn(
    voted: Array,
    classes: NDArray[np.int16],
    counts: Array,
    tokens: Array,
    seen: Tally,
    weight: NDArray[np.float32],
) -> None:
    for i in range(len(tokens)):
        if tokens[i] < 0:
            continue
        for j in range(counts[i]):
            at = classes[i, j]
            share = note(seen, at, 1.0 if voted[i, j] == tokens[i] else 0.0)
            weight[at] = (share / (1.0 - share)) ** POWER


def _guess() -> NDArray[np.float64]:
    """Before anything was observed: the longer the match and the more alike the texts, the better."""
    match, alike, kind = np.ix_(np.arange(len(MATCHES)), (np.arange(LIKENESSES) + 0.5) / LIKENESSES, np.arange(KINDS))
    logit = -1.8 + 0.4 * match + 2.5 * alike - 0.2 * (kind != OTHER)
    return np.asarray(1 / (1 + np.exp(-logit))).reshape(-1)


@native
def class_of(match: int, alike: int, kind: int) -> int:
    """`match` up to `LONGEST`, `alike` in units of 1 / `ONE`."""
    a = int(MATCH_CLASS[match])
    b = min(alike * LIKENESSES // ONE, LIKENESSES - 1)
    return (a * LIKENESSES + b) * KINDS + kind
