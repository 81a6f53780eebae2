"""Where a running request may be going on in the texts of its prompt's index.

These are the places that the request keeps beside itself (see `arena`), and those where its last tokens occurred
before, in any sequence. What speaks for a place is how long the match behind it is, and how alike the texts were
lately, differences included; what that weighs is learned, see `trust`. A place that is found in another response is
kept from then on, if it is more alike than one that is kept already.
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

WALK = 64  # slots of a chain that are looked at
PLACES = 32  # that vote at most
RECENT = 2 * arena.FADE  # tokens that tell how alike two texts are


class Places(NamedTuple):
    """Behind which slots a request may go on, and why: match length, how alike the texts are, whose text it is."""

    slots: Array
    matches: Array
    alikes: Array
    kinds: Array  # of `trust`
    weights: NDArray[np.float32]  # of their sequences


@native
def collect(address: int, row: int, backoff: bool, places: Places) -> int:
    """Fills in the places: how many there are."""
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
                _note(count, place, match, int(own[at + 1]), source, row, sequences, places)
                count += 1
    at_far, at_near = buckets(end, tokens, before, far, near, heads)
    for order in (far, near):
        if order == near and backoff and count:
            break
        slot = int(long_heads[at_far]) if order == far else int(short_heads[at_near])
        steps = 0
        while slot >= 0 and steps < WALK and count < len(places.slots):
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
            _note(count, place, match, alike, source, row, sequences, places)
            count += 1
    return count


@native
def _note(
    at: int, place: int, match: int, alike: int, source: int, row: int, sequences: Array, places: Places
) -> None:
    places.slots[at], places.matches[at], places.alikes[at] = place, match, alike
    prompt = sequences[source, KIND] == PROMPT
    places.kinds[at] = trust.PROMPT if prompt else trust.OWN if source == row else trust.OTHER
    places.weights[at] = sequences[source, WEIGHT]


@native
def _kept(sequence: Array, slot: int) -> bool:
    for at in range(arena.TRACK, arena.FIELDS, 2):  # noqa: SIM110
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
