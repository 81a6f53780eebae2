"""A reference of the index, written as directly as possible: lists and comparisons, no hashes."""

from __future__ import annotations

import math

from rhymed.histospec.drafts.trust import KINDS, MATCHES, OTHER, OWN, PROMPT, RECENT, SIMILARITIES
from rhymed.histospec.drafts.types import Matching
from rhymed.histospec.drafts.voting import COMPARED, MAX_RECENT, SHARE_POWER, UNSEEN
from rhymed.histospec.index.arena import FADE, LONGEST, ONE, TRACKS
from rhymed.histospec.sampling.noise import gumbel

START, PROMPT_START = "start", "prompt"


class Naive:
    """A text of another prompt has a number below 0: row 1 of `recent` is -1."""

    def __init__(self, prompt, orders, recent=None):
        self.recent, self.orders = recent, orders
        self.texts, self.kinds, self.ages = [], [], []
        self.written = []  # (sequence, position), the oldest first
        self.tracked = []  # by sequence: (sequence, position, similarity), or None
        self._begin(PROMPT_START, "prompt", 0)
        self.extend(0, prompt)

    def _begin(self, mark, kind, age):
        self.texts.append([mark])
        self.kinds.append(kind)
        self.ages.append(age)
        self.written.append((len(self.texts) - 1, 0))
        whole = [row for row, other in enumerate(self.kinds[:-1]) if other in ("history", "closed")]
        beginnings = [(row, 0, ONE) for row in whole[::-1]] if kind == "open" else []
        self.tracked.append((beginnings + [None] * TRACKS)[:TRACKS])
        return len(self.texts) - 1

    def add(self, tokens, age):
        self.extend(self._begin(START, "history", age), tokens)

    def open(self):
        return self._begin(START, "open", 0)

    def close(self, row):
        self.kinds[row] = "closed"

    def extend(self, row, tokens):
        for token in tokens:
            self.texts[row].append(int(token))
            self.written.append((row, len(self.texts[row]) - 1))
            self.tracked[row] = [place and self._advance(*place, int(token)) for place in self.tracked[row]]

    def _advance(self, other, place, similarity, token):
        if place + 1 >= len(self.texts[other]):
            return None
        same = self.texts[other][place + 1] == token
        return other, place + 1, similarity + (ONE if same else 0) // FADE - similarity // FADE

    def _track(self, row, other, place, similarity):
        values = [-1 if track is None else track[2] for track in self.tracked[row]]
        if min(values) < similarity:
            self.tracked[row][values.index(min(values))] = other, place, similarity

    def text(self, other):
        return self.texts[other] if other >= 0 else self.recent.texts[-other]

    def similarity(self, row, end, other, place):
        """The share of equal tokens up to here; each weighs 1 - 1 / FADE of the next one."""
        total, weight = 0.0, 1.0
        for _ in range(COMPARED):
            same = self.texts[row][end] == self.text(other)[place]
            if end == 0 or place == 0:
                return int(ONE * (total + weight * same))
            total += weight / FADE * same
            weight -= weight / FADE
            end, place = end - 1, place - 1
        return int(ONE * total)

    def matched(self, row, end, other, place, most=LONGEST):
        """Equal tokens backwards from these two; up to a common start counts as `most`."""
        match = 0
        while match < most:
            if self.texts[row][end] != self.text(other)[place]:
                return match
            if end == 0 or place == 0:
                return most
            match, end, place = match + 1, end - 1, place - 1
        return match

    def matches(self, row, settings):
        """(sequence, position of the next token, match length, similarity), newest first."""
        long, short = self.orders
        end, found = len(self.texts[row]) - 1, []
        for other, place, similarity in [] if settings.backoff else [track for track in self.tracked[row] if track]:
            if place + 1 < len(self.texts[other]):
                found.append((other, place + 1, self.matched(row, end, other, place), similarity))
        found += self._search(row, long, LONGEST, settings)
        if not (settings.backoff and found):
            found += self._search(row, short, long - 1, settings)
        return found + (self._search_recent(row) if self.recent else [])

    def _search_recent(self, row):
        end, found, (long, short) = len(self.texts[row]) - 1, [], self.recent.orders
        for least, most in ((long, LONGEST), (short, long - 1)):
            for other, place in reversed(self.recent.written):
                if other == 0 or place + 1 >= len(self.recent.texts[other]):
                    continue
                match = self.matched(row, end, -other, place)
                if least <= match <= most:
                    found.append((-other, place + 1, match, self.similarity(row, end, -other, place)))
        return found[:MAX_RECENT]

    def _search(self, row, least, most, settings):
        end, found = len(self.texts[row]) - 1, []
        for other, place in reversed(self.written):
            match = self.matched(row, end, other, place)
            if (other, place) == (row, end) or place + 1 >= len(self.texts[other]) or not least <= match <= most:
                continue
            if settings.backoff:
                if self.kinds[other] == "history" and self.ages[other] == 1:
                    found.append((other, place + 1, match, 0))
                continue
            if (other, place) in [track[:2] for track in self.tracked[row] if track]:
                continue
            similarity = self.similarity(row, end, other, place)
            if other not in (0, row):
                self._track(row, other, place, similarity)
            found.append((other, place + 1, match, similarity))
        return found

    def class_of(self, row, other, match, similarity):
        kind = RECENT if other < 0 else PROMPT if other == 0 else OWN if other == row else OTHER
        at = max(i for i, least in enumerate(MATCHES) if match >= least)
        return (at * SIMILARITIES + min(SIMILARITIES * similarity // ONE, SIMILARITIES - 1)) * KINDS + kind

    def draft(self, row, limit, settings: Matching, trust, key=None):
        """[(token, scores by token, evidence, number of agreeing matches, trust in the best)], one per step."""
        matches, steps = self.matches(row, settings), []
        self.voted = len(matches)
        start = len(self.texts[row]) - 1
        while matches and len(steps) < limit:
            shares, right = {}, {}
            for other, place, match, similarity in matches:
                token, at = self.text(other)[place], self.class_of(row, other, match, similarity)
                shares[token] = shares.get(token, 0.0) + float(trust.weight[at])
                right[token] = max(right.get(token, 0.0), trust.right[at])
            total = sum(shares.values())
            noise = gumbel(key, start + len(steps), 200) if key is not None else [0.0] * 200
            scores = {token: SHARE_POWER * math.log(vote / total) + noise[token] for token, vote in shares.items()}
            best = max(scores, key=lambda token: scores[token])
            share = shares[best] / total
            if key is not None:
                others = [score for token, score in scores.items() if token != best]
                lead = math.exp(max(others) - scores[best]) if others else 0.0
                share = math.exp(-UNSEEN * math.exp(-scores[best])) / (1.0 + lead)
            agree = sum(self.text(other)[place] == best for other, place, _, _ in matches)
            steps.append((best, scores, share, agree, right[best]))
            matches = [place for place in (self._after(row, best, place, settings) for place in matches) if place]
        return steps

    def _after(self, row, token, where, settings):
        other, place, match, similarity = where
        agrees = self.text(other)[place] == token
        if place + 1 >= len(self.text(other)) or (not agrees and (settings.backoff or other <= 0 or other == row)):
            return None
        fresh = ONE // FADE if agrees else 0
        return other, place + 1, min(match + 1, LONGEST) if agrees else 0, similarity + fresh - similarity // FADE
