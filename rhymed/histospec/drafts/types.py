"""Types that the parts of drafting share: `Matching`, `Noise`, `Drafts`, `Batch`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rhymed.histospec.drafts.trust import Votes
from rhymed.histospec.index.index import Index


@dataclass(frozen=True)
class Matching:
    """How drafts are found. `backoff` is the rule of the RhymeRL paper: if there are matches of the long order only
    these vote, otherwise only those of the short order, and only in the last epoch's responses.
    """

    longest: int = 16  # tokens of a draft
    floor: float = 0.05  # least survival of a drafted token
    backoff: bool = False


class Noise(NamedTuple):
    """The noise that the requests' next tokens will be drawn with, see `rhymed.histospec.sampling.noise`."""

    keys: NDArray[np.uint64]  # [R]
    positions: NDArray[np.int64]  # [R]: of the next token
    known: NDArray[np.bool_]  # [R]; False: sampled greedily or with other noise

    @staticmethod
    def none(requests: int) -> Noise:
        return Noise(np.zeros(requests, np.uint64), np.zeros(requests, np.int64), np.zeros(requests, np.bool_))


@dataclass(frozen=True)
class Drafts:
    """Rows are requests, columns are depths; values beyond a request's length are undefined."""

    indexes: Sequence[Index]
    rows: NDArray[np.int32]  # [R]
    tokens: NDArray[np.int32]  # [R, K]
    lengths: NDArray[np.int32]  # [R]
    survival: NDArray[np.float32]  # [R, K]: probability that tokens 0..j are all accepted
    evidence: NDArray[np.int16]  # [R, K]: for `Calibration.observe`
    votes: Votes  # for `Trust.observe`


def end_at(drafts: Drafts, stops: NDArray[np.int32]) -> None:
    """Drafts end with the first of these tokens: what follows it in history is an answer of an environment."""
    found = np.isin(drafts.tokens, stops)
    ends = np.where(found.any(axis=1), found.argmax(axis=1) + 1, drafts.tokens.shape[1])
    np.minimum(drafts.lengths, ends, out=drafts.lengths)


class Batch(NamedTuple):
    """One engine step; one row per running request, in the engine's order."""

    ids: list[str]  # of the requests
    new_tokens: list[list[int]]  # empty while the prompt is prefilled
    lengths: list[int]  # response tokens so far, the new ones included
    verified: list[int]  # drafted tokens that the step verified
    limits: NDArray[np.int32]  # tokens that the next step may make beyond its first one
    ended: list[int]  # rows that will make no more tokens
    decoded_only: bool  # nothing was prefilled
    noise: Noise | None = None  # of the next tokens; None: unknown
    stops: NDArray[np.int32] | None = None  # tokens that end a turn, where history goes on after them
    drafted: NDArray[np.int32] | None = None  # [R, K]: by the engine's own head; None: it has none


class PreviousStep(NamedTuple):
    """What was proposed for the step before; one row per request."""

    ids: list[str]
    drafts: Drafts
    foreign: NDArray[np.bool_]  # True: the draft is not from history, but carried tokens or of the engine's head


def has_one_of(previous: PreviousStep | None, ids: list[str]) -> bool:
    """Whether one of these requests was in the previous step: the engine was not idle in between."""
    return previous is not None and not set(ids).isdisjoint(previous.ids)
