"""Drafts for running requests from their prompts' indexes: one compiled call for the whole batch.

The matches of a request (see `matches`) vote for the next token. Then they advance and vote for the token after it:
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

from rhymed.histospec.drafts.calibration import Calibration, cell
from rhymed.histospec.drafts.matches import MAX_MATCHES, Matches, find_matches, find_recent
from rhymed.histospec.drafts.trust import OTHER, RECENT, Trust, Votes, class_of
from rhymed.histospec.drafts.types import Drafts, Matching, Noise
from rhymed.histospec.index import arena
from rhymed.histospec.index.arena import FADE, FORM, LONGEST, ONE, Array, following
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
    whole, parts = np.empty((7, MAX_MATCHES), np.int32), np.empty((3, MAX_MATCHES), np.float32)
    matches = Matches(whole[0], whole[1], whole[2], whole[3], parts[0])
    voting = Voting(whole[4], whole[5], parts[1], whole[6], parts[2])
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
        form = arena.views(addresses[i])[9][rows[i], FORM]
        output.lengths[i] = _draft_one(texts, i, form, limit, noise, learned, count, matches, voting, output)


@native
def _texts(address: int, recent: int) -> Texts:
    _, tokens, _, _, _, _, after, _, _, _ = arena.views(address)
    _, others, _, _, _, _, others_after, _, _, _ = arena.views(recent if recent else address)
    return Texts(tokens, after, others, others_after)


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
            voting.weights[j] = matches.weights[j] * learned.weight[at]
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
            matches.slots[kept], matches.weights[kept] = slot, matches.weights[j]
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
