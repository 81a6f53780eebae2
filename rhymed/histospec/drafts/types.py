"""Drafts, Noise, Matching: what the parts of drafting hand each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rhymed.histospec.drafts.trust import Votes
from rhymed.histospec.index.index import Index


@dataclass(frozen=True)
class Settings:
    """`backoff` is the rule of the RhymeRL paper: only matches of the long order vote where there are any, only
    those of the short order otherwise, and only the last epoch's responses.
    """

    longest: int = 16  # tokens of a draft
    floor: float = 0.05  # survival below which no token is drafted
    backoff: bool = False


class Noise(NamedTuple):
    """What the requests' next tokens will be drawn by, see `rhymed.histospec.sampling.noise`."""

    keys: NDArray[np.uint64]  # [R]
    positions: NDArray[np.int64]  # [R], of the next token
    known: NDArray[np.bool_]  # [R]; False: the largest logit is taken, or noise that is not known

    @staticmethod
    def none(requests: int) -> Noise:
        return Noise(np.zeros(requests, np.uint64), np.zeros(requests, np.int64), np.zeros(requests, np.bool_))


@dataclass(frozen=True)
class Drafts:
    """Rows are requests, columns are depths; what lies behind a request's length means nothing."""

    indexes: Sequence[Index]
    rows: NDArray[np.int32]  # [R]
    tokens: NDArray[np.int32]  # [R, K]
    lengths: NDArray[np.int32]  # [R]
    survival: NDArray[np.float32]  # [R, K]: the probability that tokens 0..j are all accepted
    evidence: NDArray[np.int16]  # [R, K]: for `Calibration.observe`
    votes: Votes  # for `Trust.observe`
