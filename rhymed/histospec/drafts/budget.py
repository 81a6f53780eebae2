"""How many drafted tokens a step verifies: one decision for the whole batch. Pure: times and probabilities come in.

A drafted token is worth its survival probability and costs the marginal time of one more verified token. The most
probable tokens are verified as long as the expected rate, tokens per second, grows. If the best rate is hardly better
than that of plain decoding, nothing is verified. `Aimd` is the rule of the RhymeRL paper (section 4.1), to compare.

`Budget` decides, with the times of steps that `CostCurve` has learned. `Pause` and `Probe` say when drafting pauses
and when it is tried again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rhymed.histospec.jit import native

Lengths = NDArray[np.int32]
Survival = NDArray[np.float32]

LEAST_GAIN = 1.05  # drafting with a lower measured gain pauses


class Pause:
    """Pauses drafting that was measured to be slower than plain decoding; each time in a row for longer. A predicted
    gain of a few per cent is within the error of the curve, so the measured one decides."""

    WINDOW, AGAIN = 24, 8  # measured steps with drafts before a decision; before the first one after a pause
    SHORTEST, LONGEST = 64, 256  # steps of a pause: drafts may begin to pay at any time

    def __init__(self) -> None:
        self._tried, self._plain_s, self._took_s = 0, 0.0, 0.0
        self._left, self._next, self._window = 0, self.SHORTEST, self.WINDOW

    def now(self, steps: int = 1) -> int:
        """Steps for which nothing is verified, from the next one on; 0: none. `steps`: since the last call."""
        self._left = max(0, self._left - steps)
        return self._left

    def observe(self, plain_s: float, took_s: float) -> None:
        """The time of a step with drafts, and the estimated time of plain decoding for the same tokens."""
        self._tried += 1
        self._plain_s += plain_s
        self._took_s += min(took_s, OUTLIER * plain_s)
        if self._tried < self._window:
            return
        if self._plain_s < LEAST_GAIN * self._took_s:
            self._left, self._next = self._next, min(2 * self._next, self.LONGEST)
            self._window = self.AGAIN
        else:
            self._next, self._window = self.SHORTEST, self.WINDOW
        self._tried, self._plain_s, self._took_s = 0, 0.0, 0.0


class Probe:
    """Verifies some drafts now and then even if they do not pay by the curve, less often each time they did not.

    Without that, a few steps that were slow for another reason would end drafting for thousands of steps. Only where
    drafts would pay if verification were free.
    """

    STEPS = 10  # in a row: after eight surprises the curve forgets
    SHORTEST, LONGEST = 256, 2048  # steps between two probes
    LIKELY = 0.5  # least survival of the tokens that are verified, at most one per request

    def __init__(self) -> None:
        self._without, self._wait = 0, self.SHORTEST

    def now(self, paying: bool, steps: int = 1) -> bool:
        """Call it where there are drafts. `paying`: by the curve. `steps`: since the last call, at least 1."""
        if paying and self._without < self._wait:
            self._without, self._wait = 0, self.SHORTEST
            return False
        self._without = max(self._without + 1, min(self._without + steps, self._wait))
        if self._without == self._wait + self.STEPS:
            self._without, self._wait = 0, min(self._wait * 3 // 2, self.LONGEST)
        return self._without >= self._wait


class Budget:
    """`choose` before a step, `observe` after it.

    To learn the curve, the first steps climb a ladder, later ones vary the optimum a little (it is flat), and now and
    then a few plain steps in a row measure plain decoding again. In a row, because a step's time includes work on the
    tokens of the step before: a plain step right after one with drafts takes longer than plain decoding.
    """

    LADDER = (0.0, 0.0, 0.125, 0.125, 0.5, 0.25, 0.0, 0.0, 1.0)  # shares of the drafted tokens
    DITHER = (1.0, 0.75, 1.0, 1.3)
    PLAIN, SELDOM, OFTEN = 4, 128, 32  # 4 plain steps in 128, or in 32 if the gain is below `CLEAR`
    CLEAR = 1.5
    NEAR = 1.5  # times as many requests, or as few: plain decoding of so many was measured
    SEARCH, LATER = 8, 64  # most plain steps in a row, to measure it; steps until the next try

    def __init__(self, largest: int, *, margin: float = 0.1, captured: Sequence[int] = ()) -> None:
        """`largest`: most tokens of one step. `margin`: least gain at which drafts are verified; measured estimates
        were up to a quarter too high. `captured`: tokens of the batches that have a CUDA graph.
        """
        self.curve = CostCurve(largest, captured)
        self._largest, self._margin = largest, margin
        self._steps = 0  # that had drafts
        self._pause, self._probe = Pause(), Probe()
        self._warm = False  # a step has verified before
        self._was_plain = True  # the step before
        self._drafting = 0.0  # seconds per request
        self._plain: deque[int] = deque(maxlen=2)  # requests of the last plain steps that were measured
        self._searched = 0  # plain steps in a row, to measure plain decoding of another number of requests
        self._since = 1  # steps since the last call of `choose`, this one included
        self.unprofitable = False  # nothing was worth verifying in the last call of `choose`

    def paused(self, steps: int = 1) -> int:
        """For how many steps, from the next one on, nothing is verified, whatever the drafts are. `steps`: since the
        last call, this one included."""
        self._since = steps
        return self._pause.now(steps)

    def choose(self, survival: Survival, lengths: Lengths) -> Lengths:
        """How many of its drafted tokens each request verifies; all 0 when drafting does not pay.

        `survival` [requests, K]: probability that the tokens up to this one are all accepted; never rises along a
        row. `lengths` [requests]: drafted tokens.
        """
        requests = len(lengths)
        self.unprofitable = True
        if not lengths.any():
            return np.zeros(requests, np.int32)
        ranked, rows = _ranked(survival, lengths, max(0, self._largest - requests))
        if not len(ranked):
            return np.zeros(requests, np.int32)
        base = self.curve.table(requests)
        base[requests + 1 :] += self._drafting * requests
        best, gain = _best(ranked, requests, base, self._margin)
        self.unprofitable = best == 0 and self._steps > len(self.LADDER)
        if float(ranked.sum()) >= self._margin * requests and self._probe.now(best > 0, self._since):
            self._steps += 1
            self.unprofitable = False
            return _count(rows, min(requests, max(1, int(np.count_nonzero(ranked >= Probe.LIKELY)))), requests)
        count = 0 if self._searches(requests) else self._vary(best, gain, len(rows))
        if count:  # what an engine would pad is verified for nothing
            count = min(len(rows), self.curve.filled(requests + count) - requests)
        return _count(rows, count, requests)

    def observe(self, requests: int, tokens: int, seconds: float, made: int, draft_s: float = 0.0) -> None:
        """A step that only decoded. `tokens`: run through the model. `made`: with accepted drafts. `draft_s`: part
        of `seconds` that was spent on drafting."""
        self._drafting += (draft_s / requests - self._drafting) / 64
        plain, before = tokens <= requests, self._was_plain
        self._was_plain = plain
        if plain and not before:
            return
        if not plain and not self._warm:
            self._warm = True  # the first one loads the verification code
            return
        self.curve.observe(requests, tokens, seconds - draft_s)
        if plain:
            self._plain.append(requests)
        if not plain and self._steps > len(self.LADDER):
            self._pause.observe(made / requests * self.curve.predict(requests, requests), seconds)

    def _searches(self, requests: int) -> bool:
        """Whether plain decoding of about so many requests has to be measured: what the curve extrapolates was up to
        a quarter too high. Steps in which requests come and go measure nothing, so it is given up for a while."""
        known = all(max(one, requests) <= self.NEAR * min(one, requests) for one in self._plain)
        self._searched = 0 if known else (self._searched + 1) % (self.SEARCH + self.LATER)
        return 0 < self._searched <= self.SEARCH

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
    """The `most` most probable drafted tokens, the best first: (survival, row of the request)."""
    total = lengths.sum()
    ranked, rows = np.empty(total, np.float32), np.empty(total, np.int32)
    at = 0
    for row in range(len(lengths)):
        for token in range(lengths[row]):
            ranked[at], rows[at] = survival[row, token], row
            at += 1
    order = np.argsort(-ranked, kind="mergesort")[:most]  # stable: earlier tokens of a request come first
    return ranked[order], rows[order]


@native
def _best(ranked: Survival, requests: int, seconds: NDArray[np.float64], margin: float) -> tuple[int, float]:
    """(number of these tokens that maximizes the expected rate, 0 if the gain is below the margin; the gain).
    `seconds` [tokens + 1]: predicted time of a step by its tokens; the last entry holds for more tokens, too."""
    plain = requests / seconds[min(requests, len(seconds) - 1)]
    made, best, highest = float(requests), 0, plain
    for count in range(1, len(ranked) + 1):
        made += ranked[count - 1]
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
    """Draft length per request: starts at 2, grows by 2 when all were accepted, returns to 2 after a miss."""

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


# The time of an engine step, learned from the engine's own steps. Pure: times come in.

MEMORY = 400  # steps after which a measurement has lost its weight
REFRESH = 8  # steps between two fits
SLOW = 1.5  # times the predicted time: a longer step counts as this, so that a few do not bend the curve
FADE = 0.1  # what remains of the weights when the engine has changed
OUTLIER = 3.0  # times the predicted time: a longer step is ignored
LEAST_SLOPE = 0.004  # prior cost of one more token, as a share of the quickest step


class CostCurve:
    """T(requests, tokens) in seconds: piecewise linear in tokens, plus a cost per request, plus a fixed cost if
    anything is verified. Fitted online.

    Knots are a factor of about sqrt(2) apart. An engine with CUDA graphs pads its batches to the captured sizes: then
    these are the knots, and the curve is a staircase up to the largest, with a cliff behind it where no graph is.
    Without recent measurements the curve continues straight; without any it is optimistic, so that it is tried.
    Invariant: a prediction is at least the quickest step's time, or with fewer tokens than that step had, their share
    of it.
    """

    def __init__(self, largest: int = 4096, captured: Sequence[int] = ()) -> None:
        """`largest`: most tokens of one step. `captured`: tokens of the captured batches, ascending."""
        sizes = np.array([size for size in captured if size <= largest], np.float64)
        knots = np.unique(np.round(2.0 ** np.arange(0, np.log2(max(2, largest)) + 0.5, 0.5)))
        if len(sizes):
            knots = np.concatenate((sizes, np.unique((sizes[-1] + 1, *knots[knots > sizes[-1]]))))
        self.knots: NDArray[np.float64] = knots
        self._all = _padded(np.arange(largest + 2, dtype=np.float64), sizes)  # tokens that are computed, by tokens
        size = len(knots) + 2  # the last two: the costs per request and of verifying
        self._information = np.zeros((size, size))
        self._moment = np.zeros(size)
        self._smooth, self._slope = _priors(knots, len(sizes) - 1)
        self._unit, self._unit_tokens = 0.0, 1  # the quickest step: seconds and tokens
        self._floor = np.zeros(largest + 2)  # seconds by tokens
        self._a_request = self._verifying = 0.0  # seconds
        self._table = np.ones(largest + 2)  # seconds by tokens, without the requests' share
        self._since = self._slow = self._quick = 0
        self.observed = 0

    def observe(self, requests: int, tokens: int, seconds: float) -> None:
        """A step decoded `requests` requests and ran `tokens` tokens through the model in `seconds`."""
        expected = self.predict(requests, tokens) if self.observed > 2 * REFRESH else seconds
        seconds = self._clipped(seconds, expected)
        if seconds > OUTLIER * expected:
            return
        if not self._unit or seconds < self._unit:
            self._unit, self._unit_tokens = seconds, max(1, self.filled(tokens))
        verifying = float(tokens > requests)
        _note(self._information, self._moment, self.knots, self.filled(tokens), requests, verifying, seconds)
        self.observed += 1
        self._since += 1
        if self._since >= REFRESH or self.observed <= REFRESH:
            self._refit()

    def _clipped(self, seconds: float, expected: float) -> float:
        """The time that a step counts as. If several in a row are slow, or quick, what was learned fades."""
        slow, quick = seconds > SLOW * expected, SLOW * seconds < expected
        self._slow, self._quick = (self._slow + 1 if slow else 0), (self._quick + 1 if quick else 0)
        if max(self._slow, self._quick) >= REFRESH:
            self._information *= FADE
            self._moment *= FADE
            self._slow = self._quick = 0
            return min(seconds, OUTLIER * expected)
        return SLOW * expected if slow and seconds <= OUTLIER * expected else seconds

    def table(self, requests: int) -> NDArray[np.float64]:
        """Predicted seconds of a step, by its tokens [tokens + 1]; constant before the first step."""
        seconds = np.maximum(self._table + self._a_request * requests, self._floor)
        seconds[requests + 1 :] += self._verifying
        return seconds

    def predict(self, requests: int, tokens: int) -> float:
        """Predicted seconds of one step; without drafts it has as many tokens as requests."""
        verifying = self._verifying if tokens > requests else 0.0
        place = min(tokens, len(self._table) - 1)
        return max(float(self._table[place]) + self._a_request * requests, float(self._floor[place])) + verifying

    def undrafted(self, requests: int, drafted: int, seconds: float, decoded_only: bool) -> tuple[float, float]:
        """Estimated seconds of a step without its `drafted` tokens, and of each plain step for a token that it made
        more. At most what it took. A step that did other work, prefilled a prompt, does that without drafts, too."""
        plain = min(self.predict(requests, requests), seconds)
        if not drafted:
            return seconds, plain
        if decoded_only:
            return plain, plain
        verifying = self.predict(requests, requests + drafted) - self.predict(requests, requests)
        return max(plain, seconds - max(0.0, verifying)), plain

    def filled(self, tokens: int) -> int:
        """The tokens that a step with `tokens` tokens computes; the rest is padding."""
        return int(self._all[tokens]) if tokens < len(self._all) else tokens

    def _refit(self) -> None:
        """Least squares with two weak priors: the curve bends little, and a token has a small positive cost."""
        slope, smooth, size = self._slope, self._smooth, len(self.knots)
        information, moment = self._information.copy(), self._moment.copy()
        information[:size, :size] += smooth.T @ smooth + 1e-3 * slope.T @ slope
        moment[:size] += 1e-3 * slope.sum(0) * LEAST_SLOPE * self._unit
        information[[-2, -1], [-2, -1]] += 1e-2
        fit = np.linalg.solve(information + 1e-9 * np.eye(size + 2), moment)
        for cost in (-1, -2):
            if fit[cost] < 0:  # a cost is not negative: fit the others without it
                information[cost, cost] += 1e12
                fit = np.linalg.solve(information + 1e-9 * np.eye(size + 2), moment)
        self._a_request, self._verifying = max(0.0, float(fit[-2])), max(0.0, float(fit[-1]))
        self._table = np.interp(self._all, self.knots, np.maximum.accumulate(fit[:-2]))
        self._floor = self._unit * np.minimum(1.0, self._all / self._unit_tokens)
        self._since = 0


@native
def _note(
    information: NDArray[np.float64],
    moment: NDArray[np.float64],
    knots: NDArray[np.float64],
    tokens: int,
    requests: int,
    verifying: float,
    seconds: float,
) -> None:
    """Adds a step to the sums of least squares, in which older ones fade. Its features are the weights of the knots
    below and above its tokens, and what the costs per request and of verifying are multiplied with."""
    size = len(knots)
    above = min(int(np.searchsorted(knots, tokens)), size - 1)
    below = max(0, above - 1)
    weight = 1.0 if above == below else min(1.0, (tokens - knots[below]) / (knots[above] - knots[below]))
    at = np.array([below, above, size, size + 1])
    share = np.array([1 - weight, weight, float(requests), verifying])
    information *= 1 - 1 / MEMORY
    moment *= 1 - 1 / MEMORY
    for i in range(4):
        moment[at[i]] += share[i] * seconds
        for j in range(4):
            information[at[i], at[j]] += share[i] * share[j]


def _padded(tokens: NDArray[np.float64], sizes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each raised to the next of `sizes`, if there is one."""
    if not len(sizes):
        return tokens
    return np.where(tokens <= sizes[-1], sizes[np.searchsorted(sizes, tokens).clip(max=len(sizes) - 1)], tokens)


def _priors(knots: NDArray[np.float64], cliff: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(rows whose product with the knots' values is 0 for a straight line, rows that give the slopes). Without those
    of the gap after the knot `cliff`, where the time may jump; -1: there is none."""
    count = len(knots)
    gaps = np.diff(knots)
    slope = np.zeros((count - 1, count))
    slope[np.arange(count - 1), np.arange(count - 1)] = -1 / gaps
    slope[np.arange(count - 1), np.arange(1, count)] = 1 / gaps
    bend = (slope[1:] - slope[:-1]) * gaps[:-1, None]
    if cliff >= 0:
        bend[max(0, cliff - 1) : cliff + 1] = 0
        slope[cliff : cliff + 1] = 0
    return 0.3 * bend, slope * gaps.mean()
