"""The weight of a match's vote: how often matches of its class were right, learned from every new token.

The class of a match is how many tokens match, how similar the two texts were lately, and whose text it is in. The
next token shows for every match that voted whether it was right, verified or not. A vote weighs the odds of its class
to the power `POWER`. It is learned because texts differ (in some a long match proves much, in others similarity does)
and because the policy changes.

`Trust` weighs matches. Its counts, `Tally`, also give the probabilities of `calibration` and of `engine`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rhymed.histospec.index.arena import LONGEST, ONE, Array
from rhymed.histospec.jit import native

MATCHES = np.array([0, 2, 3, 4, 5, 7, 10, 15, 21], np.int32)  # lower ends of the classes
MATCH_CLASS = np.searchsorted(MATCHES, np.arange(LONGEST + 1), side="right") - 1
SIMILARITIES = 16
OWN, PROMPT, OTHER, RECENT = range(4)  # whose text: the request's, its prompt's, another response's, another prompt's
KINDS = 4
CLASSES = len(MATCHES) * SIMILARITIES * KINDS
POWER = 2.0


class Votes(NamedTuple):
    """The matches that voted for the next tokens. Rows are requests; the first `counts` columns are filled."""

    tokens: NDArray[np.int32]  # [R, MAX_MATCHES]
    classes: NDArray[np.int16]  # [R, MAX_MATCHES]
    counts: NDArray[np.int32]  # [R]


class Trust:
    """`right` [CLASSES]: probability that a match of the class is right; `weight` [CLASSES]: of its vote."""

    def __init__(self) -> None:
        self._tally = tally(_guess())
        self.right = self._tally.share
        self.weight: NDArray[np.float32] = (self.right / (1 - self.right)) ** np.float32(POWER)

    def observe(self, votes: Votes, tokens: NDArray[np.int32]) -> None:
        """`tokens` [R]: the tokens that were made; -1 if unknown."""
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
    """The prior: the longer the match and the more similar the texts, the better."""
    match, similarity, kind = np.ix_(
        np.arange(len(MATCHES)), (np.arange(SIMILARITIES) + 0.5) / SIMILARITIES, np.arange(KINDS)
    )
    logit = -1.8 + 0.4 * match + 2.5 * similarity - 0.2 * (kind != OTHER) - 0.8 * (kind == RECENT)
    return np.asarray(1 / (1 + np.exp(-logit))).reshape(-1)


@native
def class_of(match: int, similarity: int, kind: int) -> int:
    """`match` up to `LONGEST`, `similarity` in units of 1 / `ONE`."""
    a = int(MATCH_CLASS[match])
    b = min(similarity * SIMILARITIES // ONE, SIMILARITIES - 1)
    return (a * SIMILARITIES + b) * KINDS + kind


# How often observations of a class were right: counts with a prior, in which older observations fade.

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
