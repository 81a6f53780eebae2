"""The time of an engine step, learned from the engine's own steps. Pure: times come in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rhymed.histospec.jit import native

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
