"""What the index should do, written as directly as possible: lists, comparisons, no hashes."""

from __future__ import annotations

import numpy as np

from rhymed.histospec.arena import ONE
from rhymed.histospec.draft import BRIDGED, ENOUGH, GAP, LONGEST, OTHER, SELF, Settings
from rhymed.histospec.index import Weights

START, PROMPT_START = "start", "prompt"


class Naive:
    def __init__(self, prompt, orders, weights=None):
        self.orders, self.weights = orders, weights or Weights()
        self.texts, self.kinds, self.ages, self.weight = [], [], [], []
        self.written = []  # (sequence, position), in the order of time
        self._begin(PROMPT_START, "prompt", 0, ONE)
        self.extend(0, prompt)

    def _begin(self, mark, kind, age, weight):
        self.texts.append([mark])
        self.kinds.append(kind)
        self.ages.append(age)
        self.weight.append(weight)
        self.written.append((len(self.texts) - 1, 0))
        return len(self.texts) - 1

    def add(self, tokens, age, reward=None):
        self.extend(self._begin(START, "history", age, self.weights.of(age, reward)), tokens)

    def open(self):
        return self._begin(START, "open", 0, ONE)

    def close(self, row, reward=None):
        self.kinds[row] = "closed"
        if reward is not None:
            self.weight[row] = self.weights.of(1, reward)

    def extend(self, row, tokens):
        for token in tokens:
            self.texts[row].append(int(token))
            self.written.append((row, len(self.texts[row]) - 1))

    def matched(self, row, end, other, place, most=LONGEST):
        """Tokens in common, backwards from these two; a common start is as good as the longest."""
        match = 0
        while match < most:
            if self.texts[row][end] != self.texts[other][place]:
                return match
            if end == 0 or place == 0:
                return most
            match, end, place = match + 1, end - 1, place - 1
        return match

    def bridged(self, row, end, other, place):
        """A short match, one token that differs, and a long match in front of it."""
        match, long = self.matched(row, end, other, place), self.orders[0]
        end, place = end - match, place - match
        return match < long and min(end, place) > 0 and self.matched(row, end - 1, other, place - 1, long) == long

    def places(self, row, settings):
        """(sequence, position of the next token, match, vote, where it is), newest first."""
        long, short = self.orders
        found = self._search(row, 0, long, LONGEST, settings)
        if len(found) < (1 if settings.backoff else ENOUGH):
            found += self._search(row, 0, short, long - 1, settings)
        if settings.backoff or any(match >= long for _, _, match, _ in found):
            return [self._place(row, place, settings) for place in found]
        for gap in range(1, GAP + 1):
            if gap < len(self.texts[row]) and (gap == 1 or not found):
                found += self._search(row, gap, long, LONGEST, settings)
        return [self._place(row, place, settings) for place in found]

    def _search(self, row, gap, least, most, settings):
        end, found = len(self.texts[row]) - 1 - gap, []
        for other, place in reversed(self.written):
            match, following = self.matched(row, end, other, place), place + 1 + gap
            if (other, place) == (row, end) or following >= len(self.texts[other]) or not least <= match <= most:
                continue
            if settings.backoff and (self.kinds[other] != "history" or self.ages[other] != 1):
                continue
            found.append((other, following, 0 if gap else match, bool(gap) or self.bridged(row, end, other, place)))
        return found

    def _place(self, row, place, settings):
        other, following, match, bridged = place
        match = min(match + settings.bridge, LONGEST) if bridged else match
        return other, following, match, self._vote(row, other, match, settings), self._source(row, other, bridged)

    def _vote(self, row, other, match, settings):
        vote = np.float32(self.weight[other] * np.float32(2.0 ** (match / settings.sharpness)))
        if self.kinds[other] == "prompt":
            vote *= np.float32(settings.prompt)
        elif other == row:
            vote *= np.float32(settings.own)
        return float(vote)

    def _source(self, row, other, bridged):
        if bridged:
            return BRIDGED
        return SELF if self.kinds[other] == "prompt" or other == row else OTHER

    def draft(self, row, limit, settings: Settings):
        """[(token, votes by token, how many agree, match, source)], one a step."""
        places, steps = self.places(row, settings), []
        while places and len(steps) < limit:
            votes = {}
            for other, place, _, vote, _ in places:
                token = self.texts[other][place]
                votes[token] = votes.get(token, 0.0) + vote
            best = max(votes, key=lambda token: votes[token])
            agreeing = [p for p in places if self.texts[p[0]][p[1]] == best]
            longest = max(agreeing, key=lambda p: p[2])
            steps.append((best, votes, len(agreeing), longest[2], longest[4]))
            places = [
                (other, place + 1, min(match + 1, LONGEST), vote, source)
                for other, place, match, vote, source in agreeing
                if place + 1 < len(self.texts[other])
            ]
        return steps
