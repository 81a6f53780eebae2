"""Continuations of running requests from their prompts' indexes: one compiled call for the whole batch.

For each request the places are collected that it keeps beside itself (see `arena`), and those where its last tokens
occurred before, in any sequence of the index. The places vote for the next token; those that agree go on and vote for
the one behind it. A vote weighs what its sequence weighs, times how long the match is, times how alike the texts were
lately, differences included. Nothing is drafted past the end of a sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rhymed.histospec import arena
from rhymed.histospec.arena import (
    FORM,
    HISTORY,
    KIND,
    LAST,
    PROMPT,
    START,
    WEIGHT,
    Array,
    buckets,
    following,
    preceding,
)
from rhymed.histospec.calibration import Calibration, cell
from rhymed.histospec.index import Index, extend
from rhymed.histospec.native import native

LONGEST = 32  # tokens of context that are compared
WALK = 64  # slots of a chain that are looked at
PLACES = 48  # that vote at most
RECENT = 3 * arena.FADE  # tokens that tell how alike two texts are
ALIKE = 5 * arena.ONE // 8
SELF, OTHER, BESIDE = range(3)  # a place is in the request or its prompt, in another response, in one that is alike


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
def collect(
    address: int,
    row: int,
    backoff: bool,
    scales: NDArray[np.float32],
    places: Array,
    matches: Array,
    votes: NDArray[np.float32],
    others: Array,
) -> int:
    """Fills in the places behind which the request may go on, with match length and vote: how many there are."""
    header, tokens, long, short, long_heads, short_heads, after, before, owner, sequences = arena.views(address)
    far, near, heads = int(header[arena.LONG]), int(header[arena.SHORT]), int(header[arena.HEADS])
    own = sequences[row]
    end, count = int(own[LAST]), 0
    if not backoff:
        for at in range(arena.TRACK, arena.FIELDS, 2):
            place = following(own[at], after) if own[at] >= 0 else arena.NOTHING
            if place >= 0 and tokens[place] >= 0:
                match = _common(end, own[at], LONGEST, tokens, before)
                source = owner[own[at] // arena.BLOCK]
                alike = int(own[at + 1])
                _vote(count, place, match, alike, source, row, sequences, scales, places, matches, votes, others)
                count += 1
    at_far, at_near = buckets(end, tokens, before, far, near, heads)
    for order in (far, near):
        if order == near and backoff and count:
            break
        slot = int(long_heads[at_far]) if order == far else int(short_heads[at_near])
        steps = 0
        while slot >= 0 and steps < WALK and count < len(places):
            steps += 1
            here = slot
            slot = int(long[slot]) if order == far else int(short[slot])
            place = following(here, after)
            if here == end or place < 0 or tokens[place] < 0 or (not backoff and _kept(own, here)):
                continue
            match = _common(end, here, LONGEST, tokens, before)
            if match < order or (order == near and match >= far):
                continue
            source, alike = owner[here // arena.BLOCK], 0
            kind = sequences[source, KIND]
            if backoff and (kind != HISTORY or sequences[source, arena.AGE] != 1):
                continue
            if not backoff:
                alike = _alike(end, here, tokens, before)
                if kind != PROMPT and source != row:
                    _keep(own, here, alike)
            _vote(count, place, match, alike, source, row, sequences, scales, places, matches, votes, others)
            count += 1
    return count


@native
def _vote(
    at: int,
    place: int,
    match: int,
    alike: int,
    source: int,
    row: int,
    sequences: Array,
    scales: NDArray[np.float32],
    places: Array,
    matches: Array,
    votes: NDArray[np.float32],
    others: Array,
) -> None:
    kind = sequences[source, KIND]
    mine = kind == PROMPT or source == row
    weight = np.float32(scales[2] if kind == PROMPT else scales[3] if mine else 1.0)
    places[at], matches[at] = place, match
    votes[at] = sequences[source, WEIGHT] * weight * 2.0 ** (match / scales[1] + scales[4] * alike / arena.ONE)
    others[at] = SELF if mine else BESIDE if alike >= ALIKE else OTHER


@native
def _kept(sequence: Array, slot: int) -> bool:
    for at in range(arena.TRACK, arena.FIELDS, 2):  # noqa: SIM110 - numba compiles no generators
        if sequence[at] == slot:
            return True
    return False


@native
def _keep(sequence: Array, slot: int, alike: int) -> None:
    """Instead of the least alike place, if that is less alike."""
    worst, least = 0, alike
    for at in range(arena.TRACK, arena.FIELDS, 2):
        value = sequence[at + 1] if sequence[at] >= 0 else -1
        if value < least:
            worst, least = at, value
    if worst:
        sequence[worst], sequence[worst + 1] = slot, alike


@native
def _alike(a: int, b: int, tokens: Array, before: Array) -> int:
    """The share of equal tokens up to these two slots, in units of 1 / ONE, older ones fading.

    In front of a common start all are equal, in front of one that is not common none.
    """
    alike, weight = 0.0, 1.0
    for _ in range(RECENT):
        same = tokens[a] == tokens[b]
        if tokens[a] <= START or tokens[b] <= START:
            return int(arena.ONE * (alike + weight if same else alike))
        fresh = weight / arena.FADE
        alike += fresh if same else 0.0
        weight -= fresh
        a, b = preceding(a, before), preceding(b, before)
    return int(arena.ONE * alike)


@native
def _common(a: int, b: int, most: int, tokens: Array, before: Array) -> int:
    """How many tokens back from two slots are the same; a common start is the longest match there is."""
    match = 0
    while match < most and tokens[a] == tokens[b]:
        if tokens[a] <= START:
            return most
        match += 1
        a, b = preceding(a, before), preceding(b, before)
    return match


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
