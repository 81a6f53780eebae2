"""How many drafted tokens a step verifies: one decision for the whole batch. Pure: times and probabilities come in.

A drafted token is worth its survival probability and costs the marginal time of one more verified token. The most
probable tokens are taken while the expected rate, tokens made a second, still grows; when the best is hardly better
than plain decoding, nothing is drafted. `CostCurve` learns the time of a step from the engine's own steps.
`Aimd` is the rule of the RhymeRL paper (section 4.1), for comparison.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rhymed.histospec.native import native

Lengths = NDArray[np.int32]
Survival = NDArray[np.float32]

MEMORY = 400  # steps: what is older has lost its weight
REFRESH = 8  # steps between two fits
SLOW = 1.5  # times what a step should take: a longer one counts as this, or a few neighbours' noise is the curve
DOUBT = 1.05  # drafting that seems to bring less than this rests
FADE = 0.1  # of what was learned, when the engine turns out to be another
OUTLIER = 3.0  # times: a longer one says nothing about the batch
OPTIMISM = 0.004  # of the smallest step's time, for one more token, until it has been measured


class CostCurve:
    """T(requests, tokens) in seconds: a piecewise linear function of tokens, so much a request, and so much for
    verifying at all, be it one drafted token. Fitted as steps go by.

    Knots lie about sqrt(2) apart. Where nothing was measured lately the curve goes on straight; where nothing was
    ever measured it is optimistic, so that it is tried.
    """

    def __init__(self, largest: int = 4096) -> None:
        """`largest`: tokens that one step may hold."""
        knots = np.unique(np.round(2.0 ** np.arange(0, np.log2(max(2, largest)) + 0.5, 0.5)))
        self.knots: NDArray[np.float64] = knots
        self._all = np.arange(largest + 2, dtype=np.float64)
        size = len(knots) + 2  # the last two: seconds a request, and where anything is drafted
        self._information = np.zeros((size, size))
        self._moment = np.zeros(size)
        self._smooth, self._slope = _priors(knots)
        self._unit = 0.0  # seconds of the quickest step seen
        self._a_request = self._verifying = 0.0  # seconds
        self._table = np.ones(largest + 2)  # seconds by tokens, without the requests' share
        self._since = self._slow = self._quick = 0
        self.observed = 0

    def observe(self, requests: int, tokens: int, seconds: float) -> None:
        """A step that decoded `requests` requests and ran `tokens` tokens through the model took so long."""
        expected = self.predict(requests, tokens) if self.observed > 2 * REFRESH else seconds
        seconds = self._wonder(seconds, expected)
        if seconds > OUTLIER * expected:
            return
        self._unit = min(self._unit or seconds, seconds)
        row = self._features(requests, tokens)
        keep = 1 - 1 / MEMORY
        self._information *= keep
        self._moment *= keep
        self._information += np.outer(row, row)
        self._moment += row * seconds
        self.observed += 1
        self._since += 1
        if self._since >= REFRESH or self.observed <= REFRESH:
            self._refit()

    def _wonder(self, seconds: float, expected: float) -> float:
        """What a step counts as. Surprises of a kind in a row are no accident: then what was learned fades."""
        slow, quick = seconds > SLOW * expected, SLOW * seconds < expected
        self._slow, self._quick = (self._slow + 1 if slow else 0), (self._quick + 1 if quick else 0)
        if max(self._slow, self._quick) >= REFRESH:
            self._information *= FADE
            self._moment *= FADE
            self._slow = self._quick = 0
            return min(seconds, OUTLIER * expected)
        return SLOW * expected if slow and seconds <= OUTLIER * expected else seconds

    def table(self, requests: int) -> NDArray[np.float64]:
        """Predicted time of a step [tokens + 1] that decodes `requests` requests; constant before the first step."""
        seconds = self._table + self._a_request * requests
        seconds[requests + 1 :] += self._verifying
        return seconds

    def predict(self, requests: int, tokens: int) -> float:
        """Seconds of one step; without drafts it has as many tokens as requests."""
        verifying = self._verifying if tokens > requests else 0.0
        return float(self._table[min(tokens, len(self._table) - 1)]) + self._a_request * requests + verifying

    def _features(self, requests: int, tokens: int) -> NDArray[np.float64]:
        row = np.zeros(len(self.knots) + 2)
        above = int(np.searchsorted(self.knots, tokens))
        if above == 0 or above == len(self.knots):
            row[min(above, len(self.knots) - 1)] = 1.0
        else:
            low, high = self.knots[above - 1], self.knots[above]
            row[above] = (tokens - low) / (high - low)
            row[above - 1] = 1 - row[above]
        row[-2:] = requests, tokens > requests
        return row

    def _refit(self) -> None:
        """Least squares with two weak beliefs: the curve bends little, and a token costs something, but not much."""
        slope, smooth, size = self._slope, self._smooth, len(self.knots)
        information, moment = self._information.copy(), self._moment.copy()
        information[:size, :size] += smooth.T @ smooth + 1e-3 * slope.T @ slope
        moment[:size] += 1e-3 * slope.sum(0) * OPTIMISM * self._unit
        information[[-2, -1], [-2, -1]] += 1e-2
        fit = np.linalg.solve(information + 1e-9 * np.eye(size + 2), moment)
        for cost in (-1, -2):
            if fit[cost] < 0:  # a cost is none: without it the others fit otherwise
                information[cost, cost] += 1e12
                fit = np.linalg.solve(information + 1e-9 * np.eye(size + 2), moment)
        self._a_request, self._verifying = max(0.0, float(fit[-2])), max(0.0, float(fit[-1]))
        self._table = np.interp(self._all, self.knots, np.maximum.accumulate(fit[:-2]))
        self._since = 0


def _priors(knots: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Rows that are 0 for a straight line, and rows that are the slope between neighbours."""
    count = len(knots)
    gaps = np.diff(knots)
    slope = np.zeros((count - 1, count))
    slope[np.arange(count - 1), np.arange(count - 1)] = -1 / gaps
    slope[np.arange(count - 1), np.arange(1, count)] = 1 / gaps
    bend = (slope[1:] - slope[:-1]) * gaps[:-1, None]
    return 0.3 * bend, slope * gaps.mean()


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


class Budget:
    """`choose` before a step, `observe` after it.

    What was never tried cannot be known: the first steps climb a ladder, later ones vary the optimum a little (it is
    flat), and a few plain steps in a row, now and then, keep what plain decoding costs up to date. In a row, for a
    step's time contains what the engine still does with the tokens of the step before: a plain step behind one with
    drafts takes longer than plain decoding.
    """

    LADDER = (0.0, 0.0, 0.125, 0.5, 0.25, 0.0, 0.0, 1.0)  # parts of what was drafted
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
        self._rest = Rest()
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
