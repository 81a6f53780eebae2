"""Where the texts of a prompt's index match a running request.

A match is a position that the request tracks in another sequence (see `arena`), or one where its last tokens occurred
before, in any sequence. Its evidence is how many tokens match, and how similar the two texts were lately, differences
included; how much that weighs is learned, see `trust`. A match found in another response is tracked from then on, if
it is more similar than one that is tracked already. Matches in the newest responses of other prompts, which are in an
index of their own, come in addition: prompts of one task share their wording.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rhymed.histospec.drafts import trust
from rhymed.histospec.index import arena
from rhymed.histospec.index.arena import (
    HISTORY,
    KIND,
    LAST,
    LONGEST,
    PROMPT,
    START,
    WEIGHT,
    Array,
    buckets,
    following,
    preceding,
)
from rhymed.histospec.jit import native

WALK = 64  # slots of a chain that are compared at most
MAX_MATCHES = 32  # that vote
MAX_RECENT = 8  # of these, in responses of other prompts
COMPARED = 2 * arena.FADE  # tokens that the similarity of two texts is computed from


class Matches(NamedTuple):
    """Positions that may continue a request, with the evidence for each; `slots`: of the next token."""

    slots: Array
    lengths: Array
    similarities: Array
    kinds: Array  # of `trust`
    weights: NDArray[np.float32]  # of their sequences


@native
def find_matches(address: int, row: int, backoff: bool, matches: Matches) -> int:
    """Fills in the matches. Returns their number."""
    header, tokens, long, short, long_heads, short_heads, after, before, owner, sequences = arena.views(address)
    far, near, heads = int(header[arena.LONG]), int(header[arena.SHORT]), int(header[arena.HEADS])
    own = sequences[row]
    end, count = int(own[LAST]), 0
    if not backoff:
        for at in range(arena.TRACK, arena.FIELDS, 2):
            place = following(own[at], after) if own[at] >= 0 else arena.NOTHING
            if place >= 0 and tokens[place] >= 0:
                match = _match_length(end, own[at], tokens, before, tokens, before)
                source = owner[own[at] // arena.BLOCK]
                _put(count, place, match, int(own[at + 1]), source, row, sequences, matches)
                count += 1
    at_far, at_near = buckets(end, tokens, before, far, near, heads)
    for order in (far, near):
        if order == near and backoff and count:
            break
        slot = int(long_heads[at_far]) if order == far else int(short_heads[at_near])
        steps = 0
        while slot >= 0 and steps < WALK and count < len(matches.slots):
            steps += 1
            here = slot
            slot = int(long[slot]) if order == far else int(short[slot])
            place = following(here, after)
            if here == end or place < 0 or tokens[place] < 0 or (not backoff and _is_tracked(own, here)):
                continue
            match = _match_length(end, here, tokens, before, tokens, before)
            if match < order or (order == near and match >= far):
                continue
            source, similarity = owner[here // arena.BLOCK], 0
            kind = sequences[source, KIND]
            if backoff and (kind != HISTORY or sequences[source, arena.AGE] != 1):
                continue
            if not backoff:
                similarity = _similarity(end, here, tokens, before, tokens, before)
                if kind != PROMPT and source != row:
                    _track(own, here, similarity)
            _put(count, place, match, similarity, source, row, sequences, matches)
            count += 1
    return count


@native
def find_recent(address: int, row: int, recent: int, count: int, matches: Matches) -> int:
    """Adds to `count` matches those in the responses of other prompts, the index at `recent`: the longest contexts
    first, and of these the newest. Returns the new number."""
    _, tokens, _, _, _, _, _, before, _, sequences = arena.views(address)
    header, others, long, short, long_heads, short_heads, after, others_before, _, _ = arena.views(recent)
    far, near = int(header[arena.LONG]), int(header[arena.SHORT])
    end, most = int(sequences[row, LAST]), min(count + MAX_RECENT, len(matches.slots))
    at_far, at_near = buckets(end, tokens, before, far, near, int(header[arena.HEADS]))
    for order in (far, near):
        slot = int(long_heads[at_far]) if order == far else int(short_heads[at_near])
        steps = 0
        while slot >= 0 and steps < WALK and count < most:
            steps += 1
            here = slot
            slot = int(long[slot]) if order == far else int(short[slot])
            place = following(here, after)
            if place < 0 or others[place] < 0:
                continue
            match = _match_length(end, here, tokens, before, others, others_before)
            if match < order or (order == near and match >= far):
                continue
            matches.slots[count], matches.lengths[count] = place, match
            matches.similarities[count] = _similarity(end, here, tokens, before, others, others_before)
            matches.kinds[count], matches.weights[count] = trust.RECENT, arena.ONE
            count += 1
    return count


@native
def _put(
    at: int, place: int, match: int, similarity: int, source: int, row: int, sequences: Array, matches: Matches
) -> None:
    matches.slots[at], matches.lengths[at], matches.similarities[at] = place, match, similarity
    prompt = sequences[source, KIND] == PROMPT
    matches.kinds[at] = trust.PROMPT if prompt else trust.OWN if source == row else trust.OTHER
    matches.weights[at] = sequences[source, WEIGHT]


@native
def _is_tracked(sequence: Array, slot: int) -> bool:
    for at in range(arena.TRACK, arena.FIELDS, 2):  # noqa: SIM110
        if sequence[at] == slot:
            return True
    return False


@native
def _track(sequence: Array, slot: int, similarity: int) -> None:
    """Replaces the least similar tracked position if it is less similar than this one."""
    worst, least = 0, similarity
    for at in range(arena.TRACK, arena.FIELDS, 2):
        value = sequence[at + 1] if sequence[at] >= 0 else -1
        if value < least:
            worst, least = at, value
    if worst:
        sequence[worst], sequence[worst + 1] = slot, similarity


@native
def _similarity(a: int, b: int, tokens: Array, before: Array, others: Array, others_before: Array) -> int:
    """The share of equal tokens up to these two slots, in units of 1 / ONE; older tokens weigh less.

    Before a common start all tokens count as equal, before a start of only one of them none.
    """
    total, weight = 0.0, 1.0
    for _ in range(COMPARED):
        same = tokens[a] == others[b]
        if tokens[a] <= START or others[b] <= START:
            return int(arena.ONE * (total + weight if same else total))
        fresh = weight / arena.FADE
        total += fresh if same else 0.0
        weight -= fresh
        a, b = preceding(a, before), preceding(b, others_before)
    return int(arena.ONE * total)


@native
def _match_length(a: int, b: int, tokens: Array, before: Array, others: Array, others_before: Array) -> int:
    """How many tokens back from two slots are equal; up to a common start counts as `LONGEST`."""
    match = 0
    while match < LONGEST and tokens[a] == others[b]:
        if tokens[a] <= START:
            return LONGEST
        match += 1
        a, b = preceding(a, before), preceding(b, others_before)
    return match
