"""Continuations of running requests from their prompts' indexes: one compiled call for the whole batch.

For each request the places are collected where its last tokens occurred before, in any sequence of the index. The
places vote for the next token; those that agree go on and vote for the one behind it. A vote weighs what its sequence
weighs, times how long the match is. A match may be bridged: behind a token or two that differ, the texts were alike
for long, so the place is probably the same one of another wording. Nothing is drafted past the end of a sequence.
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
ENOUGH = 4  # places with long matches, and short ones need not be looked for
WALK = 64  # slots of a chain that are looked at
PLACES = 24  # that vote at most
GAP = 2  # tokens that may differ before a match
SELF, OTHER, BRIDGED = range(3)  # where a place is: in the request or its prompt, in another response, behind a gap


@dataclass(frozen=True)
class Settings:
    """`sharpness`: by how many tokens a match must be longer to weigh twice as much.

    `backoff` is the rule of the RhymeRL paper: only matches of the long order vote where there are any, only
    those of the short order otherwise, and only the last epoch's responses.
    """

    longest: int = 16  # tokens of a draft
    floor: float = 0.05  # survival below which no token is drafted
    sharpness: float = 1.0
    bridge: int = 6  # tokens of match that a long match behind a gap is worth
    prompt: float = 0.5  # weight of the prompt's text
    own: float = 0.5  # weight of the request's own text
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
    scales = np.array(
        [settings.floor, settings.sharpness, settings.prompt, settings.own, settings.bridge], np.float32
    )
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
    strength = np.empty(LONGEST + 1, np.float32)
    for match in range(LONGEST + 1):
        strength[match] = 2.0 ** (match / scales[1])
    places, matches = np.empty(PLACES, np.int32), np.empty(PLACES, np.int32)
    votes, others = np.empty(PLACES, np.float32), np.empty(PLACES, np.int32)
    for i in range(len(rows)):
        limit = min(limits[i], tokens.shape[1])
        if limit <= 0:
            continue
        count = collect(addresses[i], rows[i], backoff, scales, strength, places, matches, votes, others)
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
    strength: NDArray[np.float32],
    places: Array,
    matches: Array,
    votes: NDArray[np.float32],
    others: Array,
) -> int:
    """Fills in the places behind which the request may go on, with match length and vote: how many there are."""
    header, tokens, long, short, long_heads, short_heads, after, before, owner, sequences = arena.views(address)
    far, near, heads = int(header[arena.LONG]), int(header[arena.SHORT]), int(header[arena.HEADS])
    end = int(sequences[row, LAST])
    at_far, at_near = buckets(end, tokens, before, far, near, heads)
    count, longest = 0, 0
    for search in range(2 + GAP):
        # First where long contexts agree, then short ones; if no long one does, behind a gap of one token, or of two.
        if search == 1 and count >= (1 if backoff else ENOUGH):
            continue
        if search >= 2 and (longest >= far or (search > 2 and count)):
            break
        if search >= 2:
            if backoff or tokens[end] <= START:
                break
            end = preceding(end, before)
            at_far, at_near = buckets(end, tokens, before, far, near, heads)
        slot = int(short_heads[at_near]) if search == 1 else int(long_heads[at_far])
        order = near if search == 1 else far
        steps = 0
        while slot >= 0 and steps < WALK and count < len(places):
            steps += 1
            here = slot
            slot = int(short[slot]) if search == 1 else int(long[slot])
            place = following(here, after)
            for _ in range(search - 1):
                if place >= 0 and tokens[place] >= 0:
                    place = following(place, after)
            if here == end or place < 0 or tokens[place] < 0:
                continue
            match, bridged = _matched(end, here, tokens, before, far)
            if match < order or (search == 1 and match >= far):
                continue
            source = owner[here // arena.BLOCK]
            kind = sequences[source, KIND]
            if backoff and (kind != HISTORY or sequences[source, arena.AGE] != 1):
                continue
            longest = max(longest, match if search < 2 else 0)
            if search >= 2:
                match, bridged = 0, True
            if bridged:
                match = min(match + int(scales[4]), LONGEST)
            vote = sequences[source, WEIGHT] * strength[match]
            if kind == PROMPT:
                vote *= scales[2]
            elif source == row:
                vote *= scales[3]
            places[count] = place
            matches[count] = match
            votes[count] = vote
            others[count] = BRIDGED if bridged else SELF if kind == PROMPT or source == row else OTHER
            count += 1
    return count


@native
def _matched(a: int, b: int, tokens: Array, before: Array, far: int) -> tuple[int, bool]:
    """How many tokens back from these two slots are the same; a common start is the longest match there is.

    And whether a match shorter than `far` has one of at least `far` in front of it, with one differing token between.
    """
    match, a, b = _common(a, b, LONGEST, tokens, before)
    if match >= far or tokens[a] <= START or tokens[b] <= START:
        return match, False
    return match, _common(preceding(a, before), preceding(b, before), far, tokens, before)[0] >= far


@native
def _common(a: int, b: int, most: int, tokens: Array, before: Array) -> tuple[int, int, int]:
    """How many tokens back from two slots are the same, and the slots where that ends."""
    match = 0
    while match < most and tokens[a] == tokens[b]:
        if tokens[a] <= START:
            return most, a, b
        match += 1
        a, b = preceding(a, before), preceding(b, before)
    return match, a, b


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
