"""What the index should do, written as directly as possible: lists, comparisons, no hashes."""

from __future__ import annotations

from rhymed.histospec.arena import FADE, ONE, TRACKS
from rhymed.histospec.draft import Settings
from rhymed.histospec.index import Weights
from rhymed.histospec.places import ALIKE, BESIDE, LONGEST, OTHER, RECENT, SELF

START, PROMPT_START = "start", "prompt"


class Naive:
    def __init__(self, prompt, orders, weights=None):
        self.orders, self.weights = orders, weights or Weights()
        self.texts, self.kinds, self.ages, self.weight = [], [], [], []
        self.written = []  # (sequence, position), in the order of time
        self.kept = []  # by sequence: (sequence, position, how alike), or None
        self._begin(PROMPT_START, "prompt", 0, ONE)
        self.extend(0, prompt)

    def _begin(self, mark, kind, age, weight):
        self.texts.append([mark])
        self.kinds.append(kind)
        self.ages.append(age)
        self.weight.append(weight)
        self.written.append((len(self.texts) - 1, 0))
        whole = [row for row, other in enumerate(self.kinds[:-1]) if other in ("history", "closed")]
        beginnings = [(row, 0, ONE) for row in whole[::-1]] if kind == "open" else []
        self.kept.append((beginnings + [None] * TRACKS)[:TRACKS])
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
            self.kept[row] = [place and self._go_on(*place, int(token)) for place in self.kept[row]]

    def _go_on(self, other, place, alike, token):
        if place + 1 >= len(self.texts[other]):
            return None
        same = self.texts[other][place + 1] == token
        return other, place + 1, alike + (ONE if same else 0) // FADE - alike // FADE

    def _keep(self, row, other, place, alike):
        values = [-1 if kept is None else kept[2] for kept in self.kept[row]]
        if min(values) < alike:
            self.kept[row][values.index(min(values))] = other, place, alike

    def alike(self, row, end, other, place):
        """The share of equal tokens up to here, of which each weighs 1 - 1 / FADE of the next one."""
        alike, weight = 0.0, 1.0
        for _ in range(RECENT):
            same = self.texts[row][end] == self.texts[other][place]
            if end == 0 or place == 0:
                return int(ONE * (alike + weight * same))
            alike += weight / FADE * same
            weight -= weight / FADE
            end, place = end - 1, place - 1
        return int(ONE * alike)

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

    def places(self, row, settings):
        """(sequence, position of the next token, match, vote, where it is), newest first."""
        long, short = self.orders
        end, found = len(self.texts[row]) - 1, []
        for other, place, alike in [] if settings.backoff else [kept for kept in self.kept[row] if kept]:
            if place + 1 < len(self.texts[other]):
                found.append((other, place + 1, self.matched(row, end, other, place), alike))
        found += self._search(row, long, LONGEST, settings)
        if not (settings.backoff and found):
            found += self._search(row, short, long - 1, settings)
        return [self._place(row, place, settings) for place in found]

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
            if (other, place) in [kept[:2] for kept in self.kept[row] if kept]:
                continue
            alike = self.alike(row, end, other, place)
            if other not in (0, row):
                self._keep(row, other, place, alike)
            found.append((other, place + 1, match, alike))
        return found

    def _place(self, row, place, settings):
        other, following, match, alike = place
        weight = self.weight[other] * (settings.prompt if other == 0 else settings.own if other == row else 1.0)
        vote = weight * 2.0 ** (match / settings.sharpness + settings.alike * alike / ONE)
        source = SELF if other in (0, row) else BESIDE if alike >= ALIKE else OTHER
        return other, following, match, vote, source

    def draft(self, row, limit, settings: Settings):
        """[(token, votes by token, how many agree, match, source)], one a step."""
        places, steps = self.places(row, settings), []
        self.voted = len(places)
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
