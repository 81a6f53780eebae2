"""How many drafted tokens a step verifies: one decision for the whole batch. Pure: times and probabilities come in.

A drafted token is worth its survival probability and costs the marginal time of one more verified token. The most
probable tokens are taken while the expected rate, tokens made a second, still grows; when the best is hardly better
than plain decoding, nothing is drafted. `Aimd` is the rule of the RhymeRL paper (section 4.1), for comparison.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rhymed.histospec.drafts.cost import OUTLIER, CostCurve
from rhymed.histospec.jit import native

Lengths = NDArray[np.int32]
Survival = NDArray[np.float32]

DOUBT = 1.05  # drafting that seems to bring less than this rests


class Rest:
    """Where drafting turns out to be slower than plain decoding, it rests; longer each time that it does so again.

    A predicted gain of a few per cent is within what the curve does not know, so what came of it decides.
    """

    WINDOW, AGAIN = 24, 8  # steps with drafts between two looks; of the first look after a rest
    SHORTEST, LONGEST = 64, 256  # steps: drafts that begin to be right may not be missed for long

    def __init__(self) -> None:
        self._tried, self._plain_s, self._took_s = 0, 0.0, 0.0
        self._left, self._next, self._window = 0, self.SHORTEST, self.WINDOW

    def now(self) -> bool:
        """To be asked once a step."""
        self._left = max(0, self._left - 1)
        return self._left > 0

    def observe(self, plain_s: float, took_s: float) -> None:
        """A step with drafts took so long, and what it made would have taken plain decoding so long."""
        self._tried += 1
        self._plain_s += plain_s
        self._took_s += min(took_s, OUTLIER * plain_s)
        if self._tried < self._window:
            return
        if self._plain_s < DOUBT * self._took_s:
            self._left, self._next = self._next, min(2 * self._next, self.LONGEST)
            self._window = self.AGAIN
        else:
            self._next, self._window = self.SHORTEST, self.WINDOW
        self._tried, self._plain_s, self._took_s = 0, 0.0, 0.0


class Look:
    """What is not tried is not corrected: a few slow steps, of whatever cause, would end drafting for thousands.

    So where drafts would pay if verifying cost nothing, but do not by the curve, it is tried now and then; more
    seldom each time that the curve was right.
    """

    STEPS = 10  # in a row: eight surprises make the curve forget
    SHORTEST, LONGEST = 256, 2048  # steps between two looks
    LIKELY = 0.5  # survival of the tokens that are tried, one a request at most

    def __init__(self) -> None:
        self._without, self._wait = 0, self.SHORTEST

    def now(self, paying: bool) -> bool:
        """To be asked in every step that has something to choose. `paying`: by the curve."""
        if paying and self._without < self._wait:
            self._without, self._wait = 0, self.SHORTEST
            return False
        self._without += 1
        if self._without == self._wait + self.STEPS:
            self._without, self._wait = 0, min(self._wait * 3 // 2, self.LONGEST)
        return self._without >= self._wait


class Budget:
    """`choose` before a step, `observe` after it.

    What was never tried cannot be known: the first steps climb a ladder, later ones vary the optimum a little (it is
    flat), and a few plain steps in a row, now and then, keep what plain decoding costs up to date. In a row, for a
    step's time contains what the engine still does with the tokens of the step before: a plain step behind one with
    drafts takes longer than plain decoding.
    """

    LADDER = (0.0, 0.0, 0.125, 0.125, 0.5, 0.25, 0.0, 0.0, 1.0)  # parts of what was drafted
    DITHER = (1.0, 0.75, 1.0, 1.3)
    PLAIN, SELDOM, OFTEN = 4, 128, 32  # so many of so many steps; often where the gain is below `CLEAR`
    CLEAR = 1.5

    def __init__(self, largest: int, *, margin: float = 0.1) -> None:
        """`largest`: tokens one step may hold. `margin`: gain below which nothing is drafted; estimates were
        up to a quarter too high where they were measured.
        """
        self.curve = CostCurve(largest)
        self._largest, self._margin = largest, margin
        self._steps = 0  # that had something to choose
        self._rest, self._look = Rest(), Look()
        self._warm = False  # it has verified before
        self._was_plain = True  # the step before
        self._drafting = 0.0  # seconds a request

    def resting(self) -> bool:
        """Whether the next step goes without drafts, whatever they would be. To be asked once a step."""
        return self._rest.now()

    def choose(self, survival: Survival, lengths: Lengths) -> Lengths:
        """How many of its drafted tokens each request verifies; 0 everywhere when drafting does not pay.

        `survival` [requests, K]: probability that the tokens up to here are all accepted; it never rises along a
        row. `lengths` [requests]: how many were drafted.
        """
        requests = len(lengths)
        worth, rows = _ranked(survival, lengths, max(0, self._largest - requests))
        if not len(worth):
            return np.zeros(requests, np.int32)
        base = self.curve.table(requests)
        base[requests + 1 :] += self._drafting * requests
        best, gain = _best(worth, requests, base, self._margin)
        if float(worth.sum()) >= self._margin * requests and self._look.now(best > 0):
            self._steps += 1
            return _count(rows, min(requests, max(1, int(np.count_nonzero(worth >= Look.LIKELY)))), requests)
        return _count(rows, self._vary(best, gain, len(rows)), requests)

    def observe(self, requests: int, tokens: int, seconds: float, made: int, draft_s: float = 0.0) -> None:
        """A step that only decoded. `made`: tokens that came of it, accepted drafts included. `draft_s`: part of
        `seconds` that plain decoding would not have.
        """
        self._drafting += (draft_s / requests - self._drafting) / 64
        plain, before = tokens <= requests, self._was_plain
        self._was_plain = plain
        if plain and not before:
            return
        if not plain and not self._warm:
            self._warm = True  # the first one loads what verifies
            return
        self.curve.observe(requests, tokens, seconds - draft_s)
        if not plain and self._steps > len(self.LADDER):
            self._rest.observe(made / requests * self.curve.predict(requests, requests), seconds)

    def _vary(self, best: int, gain: float, most: int) -> int:
        step = self._steps
        self._steps += 1
        if step < len(self.LADDER):
            return round(self.LADDER[step] * most)
        if step % (self.SELDOM if gain > self.CLEAR else self.OFTEN) < self.PLAIN:
            return 0
        return min(most, round(best * self.DITHER[step % len(self.DITHER)]))


@native
def _ranked(survival: Survival, lengths: Lengths, most: int) -> tuple[Survival, Lengths]:
    """The drafted tokens, the most probable first: their survival, and the request of each. At most `most`."""
    total = lengths.sum()
    worth, rows = np.empty(total, np.float32), np.empty(total, np.int32)
    at = 0
    for row in range(len(lengths)):
        for token in range(lengths[row]):
            worth[at], rows[at] = survival[row, token], row
            at += 1
    order = np.argsort(-worth, kind="mergesort")[:most]  # stable: a request's earlier token goes first
    return worth[order], rows[order]


@native
def _best(worth: Survival, requests: int, seconds: NDArray[np.float64], margin: float) -> tuple[int, float]:
    """How many of these tokens make the expected rate largest, 0 when the gain is below the margin; and the gain.

    `seconds` [tokens + 1]: predicted time of a step by the tokens that it runs; more than its last count as the last.
    """
    plain = requests / seconds[min(requests, len(seconds) - 1)]
    made, best, highest = float(requests), 0, plain
    for count in range(1, len(worth) + 1):
        made += worth[count - 1]
        rate = made / seconds[min(requests + count, len(seconds) - 1)]
        if rate > highest:
            best, highest = count, rate
    gain = highest / plain
    return best if gain >= 1 + margin else 0, gain


@native
def _count(rows: Lengths, taken: int, requests: int) -> Lengths:
    lengths = np.zeros(requests, np.int32)
    for at in range(taken):
        lengths[rows[at]] += 1
    return lengths


class Aimd:
    """Draft length of each request by itself: starts at 2, 2 more when all were accepted, back to 2 after a miss."""

    START, GROWTH, CAP = 2, 2, 32

    def __init__(self) -> None:
        self._lengths: dict[str, int] = {}

    def limit(self, request: str) -> int:
        return self._lengths.get(request, self.START)

    def observe(self, request: str, drafted: int, accepted: int) -> None:
        if drafted and accepted == drafted:
            self._lengths[request] = min(self.CAP, self.limit(request) + self.GROWTH)
        elif drafted:
            self._lengths[request] = self.START

    def forget(self, requests: Sequence[str]) -> None:
        for request in requests:
            self._lengths.pop(request, None)
