"""Continuations of running requests from their prompts' indexes: one compiled call for the whole batch.

The places where a request may be going on (see `places`) vote for the next token; those that agree go on and vote for
the one behind it. Nothing is drafted past the end of a sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rhymed.histospec import arena
from rhymed.histospec.arena import FORM, Array, following
from rhymed.histospec.calibration import Calibration, cell
from rhymed.histospec.index import Index, extend
from rhymed.histospec.native import native
from rhymed.histospec.places import LONGEST, PLACES, SELF, collect


@dataclass(frozen=True)
class Settings:
    """`sharpness`: by how many tokens a match must be longer to weigh twice as much; texts that are alike weigh as if
    the match were `alike` times `sharpness` tokens longer, at most.

    `backoff` is the rule of the RhymeRL paper: only matches of the long order vote where there are any, only
    those of the short order otherwise, and only the last epoch's responses.
    """

    longest: int = 16  # tokens of a draft
    floor: float = 0.05  # survival below which no token is drafted
    sharpness: float = 1.2
    alike: float = 6.0
    prompt: float = 0.5  # weight of the prompt's text
    own: float = 1.0  # weight of the request's own text
    backoff: bool = False


@dataclass(frozen=True)
class Drafts:
    """Rows are requests, columns are depths; what lies behind a request's length means nothing."""

    indexes: Sequence[Index]
    rows: NDArray[np.int32]  # [R]
    tokens: NDArray[np.int32]  # [R, K]
    lengths: NDArray[np.int32]  # [R]
    survival: NDArray[np.float32]  # [R, K]: the probability that tokens 0..j are all accepted
    evidence: NDArray[np.int16]  # [R, K]: for `Calibration.observe`


def draft(
    indexes: Sequence[Index],
    rows: NDArray[np.int32],
    fresh: NDArray[np.int32],
    offsets: NDArray[np.int32],
    limits: NDArray[np.int32],
    settings: Settings,
    calibration: Calibration,
) -> Drafts:
    """Appends `fresh[offsets[i]:offsets[i + 1]]` to row i (see `index.extend`), drafts at most `limits[i]` tokens."""
    addresses = extend(indexes, rows, fresh, offsets)
    shape = (len(rows), settings.longest)
    tokens, evidence = np.empty(shape, np.int32), np.empty(shape, np.int16)
    lengths, survival = np.zeros(len(rows), np.int32), np.empty(shape, np.float32)
    scales = np.array([settings.floor, settings.sharpness, settings.prompt, settings.own, settings.alike], np.float32)
    _batch(addresses, rows, limits, scales, settings.backoff, calibration.table, tokens, lengths, survival, evidence)
    return Drafts(indexes, rows, tokens, lengths, survival, evidence)


@native
def _batch(
    addresses: NDArray[np.int64],
    rows: Array,
    limits: Array,
    scales: NDArray[np.float32],
    backoff: bool,
    table: NDArray[np.float32],
    tokens: Array,
    lengths: Array,
    survival: NDArray[np.float32],
    evidence: NDArray[np.int16],
) -> None:
    places, matches = np.empty(PLACES, np.int32), np.empty(PLACES, np.int32)
    votes, others = np.empty(PLACES, np.float32), np.empty(PLACES, np.int32)
    for i in range(len(rows)):
        limit = min(limits[i], tokens.shape[1])
        if limit <= 0:
            continue
        count = collect(addresses[i], rows[i], backoff, scales, places, matches, votes, others)
        form = arena.views(addresses[i])[9][rows[i], FORM]
        lengths[i] = _follow(
            addresses[i],
            limit,
            scales[0],
            form,
            table,
            count,
            places,
            matches,
            votes,
            others,
            tokens[i],
            survival[i],
            evidence[i],
        )


@native
def _follow(
    address: int,
    limit: int,
    floor: float,
    form: int,
    table: NDArray[np.float32],
    count: int,
    places: Array,
    matches: Array,
    votes: NDArray[np.float32],
    others: Array,
    draft: Array,
    survival: NDArray[np.float32],
    evidence: NDArray[np.int16],
) -> int:
    """Votes, step by step; the places that agree go on. How many tokens were drafted."""
    _, tokens, _, _, _, _, after, _, _, _ = arena.views(address)
    alive = np.float32(1.0)
    for depth in range(limit):
        if count == 0:
            return depth
        total, best, best_vote = np.float32(0.0), -1, np.float32(0.0)
        for i in range(count):
            total += votes[i]
            token = tokens[places[i]]
            if token == best:
                continue
            vote = np.float32(0.0)
            for j in range(i, count):
                if tokens[places[j]] == token:
                    vote += votes[j]
            if vote > best_vote:
                best, best_vote = token, vote
        kept, agreeing, match, other = 0, 0, -1, SELF
        for i in range(count):
            if tokens[places[i]] != best:
                continue
            agreeing += 1
            if matches[i] > match:
                match, other = matches[i], others[i]
            place = following(places[i], after)
            if place >= 0 and tokens[place] >= 0:
                places[kept], votes[kept], others[kept] = place, votes[i], others[i]
                matches[kept] = min(matches[i] + 1, LONGEST)
                kept += 1
        where = cell(match, float(best_vote / total), agreeing, other, form)
        alive *= table[where]
        if alive < floor:
            return depth
        draft[depth] = best
        survival[depth] = alive
        evidence[depth] = where
        count = kept
    return limit
