"""Continuations of running requests from their prompts' indexes: one compiled call for the whole batch.

The places where a request may be going on (see `places`) vote for the next token, then all go on and vote for the one
behind it: those that agreed with a longer match, other responses also when they did not, for what is said in other
words is still said there. Nothing is drafted past the end of a sequence.

The shares of the votes, q, estimate the policy's distribution p. Greedily, the most probable token is drafted. What
is sampled by position-keyed noise will be `argmax log p[v] + noise[v]`, and that noise is known before p is: so
`argmax log q[v] + noise[v]` is drafted. It is right more often than the most probable token, and how far it leads
tells how sure that is (the coupling of Daliri et al., "Coupling without communication and drafter-invariant
speculative decoding", 2024). Drafts change nothing but speed, whatever they are made of.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rhymed.histospec.drafts.calibration import Calibration, cell
from rhymed.histospec.drafts.matches import PLACES, Places, collect
from rhymed.histospec.drafts.trust import OTHER, Trust, Votes, class_of
from rhymed.histospec.drafts.types import Drafts, Noise, Settings
from rhymed.histospec.index import arena
from rhymed.histospec.index.arena import FADE, FORM, LONGEST, ONE, Array, following
from rhymed.histospec.index.index import Index, extend
from rhymed.histospec.jit import native
from rhymed.histospec.sampling.cpu import gumbel, row_word

FLAT = 1.5  # power of a share that estimates q best beside the noise
UNSEEN = 0.05  # of q, for all tokens that nobody votes for


def draft(
    indexes: Sequence[Index],
    rows: NDArray[np.int32],
    fresh: NDArray[np.int32],
    offsets: NDArray[np.int32],
    limits: NDArray[np.int32],
    settings: Settings,
    calibration: Calibration,
    trust: Trust,
    noise: Noise | None = None,
) -> Drafts:
    """Appends `fresh[offsets[i]:offsets[i + 1]]` to row i (see `index.extend`), drafts at most `limits[i]` tokens.

    `noise`: none is known without it.
    """
    addresses, count = extend(indexes, rows, fresh, offsets), len(rows)
    shape, voters = (count, settings.longest), (count, PLACES)
    votes = Votes(np.empty(voters, np.int32), np.empty(voters, np.int16), np.zeros(count, np.int32))
    drafts = Drafts(
        indexes,
        rows,
        np.empty(shape, np.int32),
        np.zeros(count, np.int32),
        np.empty(shape, np.float32),
        np.empty(shape, np.int16),
        votes,
    )
    known = Known(settings.floor, settings.backoff, trust.right, trust.weight, calibration.table)
    made = Made(drafts.tokens, drafts.lengths, drafts.survival, drafts.evidence)
    _batch(addresses, rows, limits, noise or Noise.none(count), known, made, votes)
    return drafts


class Known(NamedTuple):
    floor: float
    backoff: bool
    right: NDArray[np.float32]  # of `Trust`
    weight: NDArray[np.float32]
    table: NDArray[np.float32]  # of `Calibration`


class Made(NamedTuple):
    """Of `Drafts`."""

    tokens: NDArray[np.int32]
    lengths: NDArray[np.int32]
    survival: NDArray[np.float32]
    evidence: NDArray[np.int16]


class Voting(NamedTuple):
    """Where one request's votes are counted."""

    said: Array  # [PLACES]: of each place, the token
    classes: Array
    weights: NDArray[np.float32]
    tokens: Array  # [PLACES]: the different ones
    votes: NDArray[np.float32]


@native
def _batch(
    addresses: NDArray[np.int64], rows: Array, limits: Array, noise: Noise, known: Known, made: Made, votes: Votes
) -> None:
    whole, parts = np.empty((7, PLACES), np.int32), np.empty((3, PLACES), np.float32)
    places = Places(whole[0], whole[1], whole[2], whole[3], parts[0])
    voting = Voting(whole[4], whole[5], parts[1], whole[6], parts[2])
    for i in range(len(rows)):
        limit = min(limits[i], made.tokens.shape[1])
        if limit <= 0:
            continue
        count = collect(addresses[i], rows[i], known.backoff, places)
        tokens = arena.views(addresses[i])[1]
        for j in range(count):
            votes.tokens[i, j] = tokens[places.slots[j]]
            votes.classes[i, j] = class_of(places.matches[j], places.alikes[j], places.kinds[j])
        votes.counts[i] = count
        made.lengths[i] = _follow(addresses[i], i, rows[i], limit, noise, known, count, places, voting, made)


@native
def _follow(
    address: int,
    i: int,
    row: int,
    limit: int,
    noise: Noise,
    known: Known,
    count: int,
    places: Places,
    voting: Voting,
    made: Made,
) -> int:
    """Votes, step by step. How many tokens were drafted."""
    _, tokens, _, _, _, _, after, _, _, sequences = arena.views(address)
    form, alive = sequences[row, FORM], np.float32(1.0)
    for depth in range(limit):
        if count == 0:
            return depth
        for j in range(count):
            at = class_of(places.matches[j], places.alikes[j], places.kinds[j])
            voting.said[j], voting.classes[j] = tokens[places.slots[j]], at
            voting.weights[j] = places.weights[j] * known.weight[at]
        word = row_word(noise.keys[i], noise.positions[i] + depth)
        best, share = _elect(count, voting, word, noise.known[i])
        trusted, agreeing = np.float32(0.0), 0
        for j in range(count):
            if voting.said[j] == best:
                agreeing += 1
                trusted = max(trusted, known.right[voting.classes[j]])
        where = cell(float(trusted), share, agreeing, form)
        alive *= known.table[where]
        if alive < known.floor:
            return depth
        made.tokens[i, depth], made.survival[i, depth], made.evidence[i, depth] = best, alive, where
        count = _go_on(best, count, voting, known.backoff, tokens, after, places)
    return limit


@native
def _go_on(best: int, count: int, voting: Voting, backoff: bool, tokens: Array, after: Array, places: Places) -> int:
    """Moves the places one token on, and leaves out those that end or are not to go on. How many are left."""
    kept = 0
    for j in range(count):
        agrees = voting.said[j] == best
        if not agrees and (backoff or places.kinds[j] != OTHER):
            continue
        slot = following(places.slots[j], after)
        if slot >= 0 and tokens[slot] >= 0:
            places.slots[kept], places.weights[kept] = slot, places.weights[j]
            places.matches[kept] = min(places.matches[j] + 1, LONGEST) if agrees else 0
            places.alikes[kept] = places.alikes[j] + (ONE // FADE if agrees else 0) - places.alikes[j] // FADE
            places.kinds[kept] = places.kinds[j]
            kept += 1
    return kept


@native
def _elect(count: int, voting: Voting, word: np.uint64, keyed: bool) -> tuple[int, float]:
    """The token to draft, and what speaks for it: without noise its share, with noise how probable its lead is."""
    different, total = 0, np.float32(0.0)
    for j in range(count):
        k = 0
        while k < different and voting.tokens[k] != voting.said[j]:
            k += 1
        if k == different:
            voting.tokens[k], voting.votes[k] = voting.said[j], np.float32(0.0)
            different += 1
        voting.votes[k] += voting.weights[j]
        total += voting.weights[j]
    best, highest, second, share = -1, -np.inf, -np.inf, np.float32(0.0)
    for k in range(different):
        score = FLAT * math.log(voting.votes[k] / total)
        if keyed:
            score += gumbel(word, voting.tokens[k])
        if score > highest:
            best, highest, second, share = voting.tokens[k], score, highest, voting.votes[k] / total
        elif score > second:
            second = score
    if keyed:
        return best, math.exp(-UNSEEN * math.exp(-highest)) / (1.0 + math.exp(second - highest))
    return best, float(share)
