"""Drafts for running requests from their prompts' indexes: one compiled call for the whole batch.

The matches of a request (`find_matches`) vote for the next token. Then they advance and vote for the token after it:
those that agreed with a longer match, those in other responses even if they disagreed, since texts usually realign
after a difference. Nothing is drafted past the end of a sequence.

The shares of the votes, q, estimate the policy's distribution p. With greedy sampling the most probable token is
drafted. With position-keyed noise the sampler will draw `argmax log p[v] + noise[v]`, and the noise is known before
p: so `argmax log q[v] + noise[v]` is drafted. It is right more often than the most probable token, and its lead says
how certain it is (the coupling of Daliri et al., "Coupling without communication and drafter-invariant speculative
decoding", 2024). Drafts change nothing but speed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rhymed.histospec.drafts import trust
from rhymed.histospec.drafts.calibration import Calibration, cell
from rhymed.histospec.drafts.trust import OTHER, RECENT, Trust, Votes, class_of
from rhymed.histospec.drafts.types import Drafts, Matching, Noise
from rhymed.histospec.index import arena
from rhymed.histospec.index.arena import (
    FADE,
    FORM,
    HISTORY,
    KIND,
    LAST,
    LONGEST,
    ONE,
    PROMPT,
    START,
    Array,
    buckets,
    following,
    preceding,
)
from rhymed.histospec.index.index import Index, extend
from rhymed.histospec.jit import native
from rhymed.histospec.sampling.cpu import gumbel, row_word

SHARE_POWER = 1.5  # fitted: q is the shares to this power
UNSEEN = 0.05  # probability under q of all tokens without a vote


def draft(
    indexes: Sequence[Index],
    rows: NDArray[np.int32],
    fresh: NDArray[np.int32],
    offsets: NDArray[np.int32],
    limits: NDArray[np.int32],
    settings: Matching,
    calibration: Calibration,
    trust: Trust,
    noise: Noise | None = None,
    recent: Index | None = None,
) -> Drafts:
    """Appends `fresh[offsets[i]:offsets[i + 1]]` to row i (see `index.extend`), drafts at most `limits[i]` tokens.
    `recent`: responses of other prompts."""
    addresses, count = extend(indexes, rows, fresh, offsets), len(rows)
    shape, voters = (count, settings.longest), (count, MAX_MATCHES)
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
    learned = Learned(settings.floor, settings.backoff, trust.right, trust.weight, calibration.table)
    output = Output(drafts.tokens, drafts.lengths, drafts.survival, drafts.evidence)
    others = recent.address if recent is not None and not settings.backoff else 0
    _batch(addresses, others, rows, limits, noise or Noise.none(count), learned, output, votes)
    return drafts


class Learned(NamedTuple):
    """The settings and learned tables that drafting reads."""

    floor: float
    backoff: bool
    right: NDArray[np.float32]  # of `Trust`
    weight: NDArray[np.float32]
    table: NDArray[np.float32]  # of `Calibration`


class Output(NamedTuple):
    """The arrays of `Drafts` that are filled in."""

    tokens: NDArray[np.int32]
    lengths: NDArray[np.int32]
    survival: NDArray[np.float32]
    evidence: NDArray[np.int16]


class Texts(NamedTuple):
    """Tokens and links of a prompt's index, and of the responses of other prompts (without them: of the same)."""

    tokens: Array
    after: Array
    others: Array
    others_after: Array


class Voting(NamedTuple):
    """Scratch space to count one request's votes."""

    choices: Array  # [MAX_MATCHES]: the token that each match votes for
    classes: Array
    weights: NDArray[np.float32]
    tokens: Array  # [MAX_MATCHES]: the different tokens among these
    votes: NDArray[np.float32]


@native
def _batch(
    addresses: NDArray[np.int64],
    recent: int,
    rows: Array,
    limits: Array,
    noise: Noise,
    learned: Learned,
    output: Output,
    votes: Votes,
) -> None:
    whole, parts = np.empty((7, MAX_MATCHES), np.int32), np.empty((2, MAX_MATCHES), np.float32)
    matches = Matches(whole[0], whole[1], whole[2], whole[3])
    voting = Voting(whole[4], whole[5], parts[0], whole[6], parts[1])
    for i in range(len(rows)):
        limit = min(limits[i], output.tokens.shape[1])
        if limit <= 0:
            continue
        count = find_matches(addresses[i], rows[i], learned.backoff, matches)
        if recent:
            count = find_recent(addresses[i], rows[i], recent, count, matches)
        texts = _texts(addresses[i], recent)
        for j in range(count):
            votes.tokens[i, j] = _token(texts, matches, j)
            votes.classes[i, j] = class_of(matches.lengths[j], matches.similarities[j], matches.kinds[j])
        votes.counts[i] = count
        form = arena.views(addresses[i]).sequences[rows[i], FORM]
        output.lengths[i] = _draft_one(texts, i, form, limit, noise, learned, count, matches, voting, output)


@native
def _texts(address: int, recent: int) -> Texts:
    own, others = arena.views(address), arena.views(recent if recent else address)
    return Texts(own.tokens, own.after, others.tokens, others.after)


@native
def _token(texts: Texts, matches: Matches, j: int) -> int:
    """The token that match j votes for."""
    return int((texts.others if matches.kinds[j] == RECENT else texts.tokens)[matches.slots[j]])


@native
def _draft_one(
    texts: Texts,
    i: int,
    form: int,
    limit: int,
    noise: Noise,
    learned: Learned,
    count: int,
    matches: Matches,
    voting: Voting,
    output: Output,
) -> int:
    """Drafts for request i token by token. Returns how many tokens."""
    survival = np.float32(1.0)
    for depth in range(limit):
        if count == 0:
            return depth
        for j in range(count):
            at = class_of(matches.lengths[j], matches.similarities[j], matches.kinds[j])
            voting.choices[j], voting.classes[j] = _token(texts, matches, j), at
            voting.weights[j] = learned.weight[at]
        word = row_word(noise.keys[i], noise.positions[i] + depth)
        best, share = _choose(count, voting, word, noise.known[i])
        trusted, agreeing = np.float32(0.0), 0
        for j in range(count):
            if voting.choices[j] == best:
                agreeing += 1
                trusted = max(trusted, learned.right[voting.classes[j]])
        where = cell(float(trusted), share, agreeing, form)
        survival *= learned.table[where]
        if survival < learned.floor:
            return depth
        output.tokens[i, depth], output.survival[i, depth], output.evidence[i, depth] = best, survival, where
        count = _advance(best, count, voting, learned.backoff, texts, matches)
    return limit


@native
def _advance(best: int, count: int, voting: Voting, backoff: bool, texts: Texts, matches: Matches) -> int:
    """Moves the matches by one token and drops those that end or disagree. Returns how many are left."""
    kept = 0
    for j in range(count):
        agrees = voting.choices[j] == best
        if not agrees and (backoff or matches.kinds[j] != OTHER):
            continue
        elsewhere = matches.kinds[j] == RECENT
        slot = following(matches.slots[j], texts.others_after if elsewhere else texts.after)
        if slot >= 0 and (texts.others if elsewhere else texts.tokens)[slot] >= 0:
            matches.slots[kept] = slot
            matches.lengths[kept] = min(matches.lengths[j] + 1, LONGEST) if agrees else 0
            similarity = matches.similarities[j]
            matches.similarities[kept] = similarity + (ONE // FADE if agrees else 0) - similarity // FADE
            matches.kinds[kept] = matches.kinds[j]
            kept += 1
    return kept


@native
def _choose(count: int, voting: Voting, word: np.uint64, keyed: bool) -> tuple[int, float]:
    """The token to draft and its evidence: without noise its share, with noise the probability that it is drawn."""
    different, total = 0, np.float32(0.0)
    for j in range(count):
        k = 0
        while k < different and voting.tokens[k] != voting.choices[j]:
            k += 1
        if k == different:
            voting.tokens[k], voting.votes[k] = voting.choices[j], np.float32(0.0)
            different += 1
        voting.votes[k] += voting.weights[j]
        total += voting.weights[j]
    best, highest, second, share = -1, -np.inf, -np.inf, np.float32(0.0)
    for k in range(different):
        score = SHARE_POWER * math.log(voting.votes[k] / total)
        if keyed:
            score += gumbel(word, voting.tokens[k])
        if score > highest:
            best, highest, second, share = voting.tokens[k], score, highest, voting.votes[k] / total
        elif score > second:
            second = score
    if keyed:
        return best, math.exp(-UNSEEN * math.exp(-highest)) / (1.0 + math.exp(second - highest))
    return best, float(share)


# Where the texts of a prompt's index match a running request.
#
# A match is a position that the request tracks in another sequence (see `index.arena`), or one where its last tokens
# occurred before, in any sequence. Its evidence is how many tokens match, and how similar the two texts were lately,
# differences included; how much that weighs is learned, see `trust`. A match found in another response is tracked
# from then on, if it is more similar than one that is tracked already. Matches in the newest responses of other
# prompts, which are in an index of their own, come in addition: prompts of one task share their wording.

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
    mine = arena.views(address)
    tokens, before, sequences = mine.tokens, mine.before, mine.sequences
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
            matches.kinds[count] = trust.RECENT
            count += 1
    return count


@native
def _put(
    at: int, place: int, match: int, similarity: int, source: int, row: int, sequences: Array, matches: Matches
) -> None:
    matches.slots[at], matches.lengths[at], matches.similarities[at] = place, match, similarity
    prompt = sequences[source, KIND] == PROMPT
    matches.kinds[at] = trust.PROMPT if prompt else trust.OWN if source == row else trust.OTHER


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
