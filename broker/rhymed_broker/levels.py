"""The model of response lengths: histograms of levels, drifts and noises, and Bayes' rule with them. Pure.

`forecast` has the terms, and the answers that are computed from this model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from rhymed_broker.slices import Slices, sliced

BIN = 0.05  # of log length: the grid's resolution
ABOVE_CAP = 1.5  # of log length: a level may lie so far above the cap
BLUR = 0.25  # of log length: smooths the levels of few prompts
FRESH = 0.002  # probability that a prompt's history is irrelevant
FORGET = 0.05  # of the counts, whenever closed visits add to them
BATCH = 512  # groups in one numpy operation; at most so many of a step are learned from, evenly spread
ROUNDS = 3  # of expectation-maximisation on the same groups
FLOOR = -30.0  # of log likelihoods: avoids denormal numbers, which are a hundred times slower
Array = NDArray[Any]  # float32; counts are float64
Table = tuple[Array, Array]  # by bin: P(this bin or a later one); expected tokens there, times that probability


class GroupLengths:
    """A prompt's samples in one step, as bins, and the inference from them."""

    __slots__ = ("done", "now", "prior", "prompt", "running", "tables", "version")

    def __init__(self, prompt: str, done: Sequence[int] = ()) -> None:
        self.prompt = prompt
        self.done = [*done]
        self.running: list[int] = []  # sorted
        self.version = -1  # of the model that computed `prior`
        self.prior: Array  # of the level, without this step's samples
        self.now: tuple[float, float]  # mean and standard deviation of the level, with them
        self.tables: dict[int, Table] = {}  # by the running sample left out of the evidence; -1: none


class Model:
    """The histograms, and Bayes' rule with them. Arrays are [groups, levels] unless noted."""

    def __init__(self, cap: int) -> None:
        self.bins = max(1, math.ceil(math.log(cap) / BIN))
        self.width = math.log(cap) / self.bins or BIN
        self._levels = self.bins + round(ABOVE_CAP / self.width)
        self._axis = np.arange(self._levels, dtype=np.float32)
        offsets = np.arange(1 - self._levels, self._levels) * self.width
        means = np.diff(np.exp(np.arange(self.bins + 1) * self.width)) / self.width  # of a bin: log-uniform
        self._tokens = np.append(means, cap).astype(np.float32)
        self._blur = _toeplitz(_normal(np.exp(-0.5 * (offsets / BLUR) ** 2)))
        # Before any data: an eighth of the cap, with the heavy tails of Student's t (3 degrees of freedom).
        initial = ((2, self._axis * self.width - math.log(cap / 8)), (2, offsets / 0.08), (4, offsets / 0.2))
        self._pseudo = [count * _normal(np.power(1 + scaled.astype(float) ** 2 / 3, -2)) for count, scaled in initial]
        self._past = [0 * counts for counts in self._pseudo]  # expected counts, of closed steps
        self._set(self._past)
        self.known: dict[str, tuple[float, float]] = {}  # prompt -> `now` of its last visit
        self.version = 0  # of histograms and beliefs

    @sliced
    def learn(self, groups: Sequence[GroupLengths], closed: bool = False) -> Slices[None]:
        """Learn from these groups and the past. `closed`: they belong to the past now."""
        if not groups:
            return
        spread = groups[:: len(groups) // BATCH + 1]
        past = [(1 - FORGET * closed) * counts for counts in self._past]
        for _ in range(ROUNDS):
            counted = yield from self._count(spread)
            total = [old + new for old, new in zip(past, counted, strict=True)]
            self._set(total)
            yield
        self.version += 1
        self._past = total if closed else self._past

    @sliced
    def refresh(self, groups: Sequence[GroupLengths]) -> Slices[None]:
        """Updates many groups at a shared cost."""
        for at in range(0, len(groups), BATCH):
            batch = groups[at : at + BATCH]
            _, priors = self._priors(batch)
            level = _normal(priors * self._likely(batch))
            mean = level @ self._axis
            spread = np.sqrt((level @ self._axis**2 - mean**2).clip(0.25**2))  # a bin has a width
            beliefs, tables = zip(mean.tolist(), spread.tolist(), strict=True), zip(*self._tables(level), strict=True)
            for group, prior, belief, table in zip(batch, priors, beliefs, tables, strict=True):
                group.prior, group.now, group.tables, group.version = prior, belief, {-1: table}, self.version
            yield

    @sliced
    def take(self, groups: Sequence[GroupLengths]) -> Slices[None]:
        """These visits are over."""
        yield from self.refresh.slices(groups)
        self.known |= {group.prompt: group.now for group in groups}
        self.version += 1

    def table(self, group: GroupLengths, without: int) -> Table:
        """For one more sample. `without`: the bin of a running sample to leave out of the evidence; -1: none."""
        return self._tables(_normal(group.prior * self._likely([group], without)[0]))

    def _tables(self, level: Array) -> Table:
        shares = level @ self._shares
        return shares[..., ::-1].cumsum(-1)[..., ::-1], (shares * self._tokens)[..., ::-1].cumsum(-1)[..., ::-1]

    def _set(self, counts: Sequence[Array]) -> None:
        level, self._drift, self._noise = (_normal(a + b) for a, b in zip(counts, self._pseudo, strict=True))
        self._level = level.astype(np.float32)
        self._drifted = _normal(_toeplitz(self._drift))  # [level before, level now]
        self._longer = self._noise[::-1].cumsum()[::-1]  # [offset]: probability of this noise or more
        longer = _toeplitz(self._longer)[:, : self.bins + 1]
        self._shares = _toeplitz(self._noise)[:, : self.bins + 1]  # [level, bin]
        self._shares[:, 0] += 1 - longer[:, 0]  # no response is shorter than one token,
        self._shares[:, -1] = longer[:, -1]  # nor longer than the cap
        longer[:, 0] = 1
        self._evidence = np.log(np.concatenate((self._shares.T, longer.T)))  # [ended in a bin, or reached it; level]

    def _priors(self, groups: Sequence[GroupLengths]) -> tuple[Array, Array]:
        """Levels after the last visit (0 without one), and before this one's samples."""
        beliefs = [self.known.get(group.prompt, (0.0, math.inf)) for group in groups]
        mean, spread = np.array(beliefs, dtype=np.float32).T[:, :, None]
        known = np.where(np.isfinite(spread), np.float32(1 - FRESH), np.float32(0))
        old = known * _normal(np.exp((-0.5 * ((self._axis - mean) / spread) ** 2).clip(FLOOR)))
        return old, old @ self._drifted + (1 - known) * self._level

    def _likely(self, groups: Sequence[GroupLengths], without: int = -1) -> Array:
        """Likelihood of the samples by level, up to a factor."""
        reached = self.bins + 1
        shown = [[reached, *g.done, *(reached + bin for bin in g.running)] for g in groups]  # bin 0: all reach it
        if without > 0:
            shown[0].remove(reached + without)
        evidence = np.add.reduceat(self._evidence[[*chain(*shown)]], [0, *accumulate(map(len, shown[:-1]))])
        return np.asarray(np.exp((evidence - evidence.max(axis=1, keepdims=True)).clip(FLOOR)))

    def _count(self, groups: Sequence[GroupLengths]) -> Slices[tuple[Array, Array, Array]]:
        """Expected counts of these groups' levels, drifts and noises (Dempster, Laird and Rubin 1977)."""
        old, prior = self._priors(groups)
        yield
        likely = self._likely(groups)
        yield
        total = (prior * likely).sum(axis=1, keepdims=True)
        level = prior * likely / total
        drift = self._drift * self._by_offset((old / total).T @ likely)
        yield
        ended = self._by_offset(level.T @ self._occupied([[b for b in g.done if b < self.bins] for g in groups]))
        at_least = [[*group.running, *(bin for bin in group.done if bin == self.bins)] for group in groups]
        censored = self._by_offset(level.T @ self._occupied(at_least))
        noise = ended + self._noise * (censored / self._longer).cumsum()  # each lies somewhere above its own offset
        return level.sum(axis=0) @ self._blur, drift, noise

    def _occupied(self, bins: Sequence[Sequence[int]]) -> Array:
        """[group, bin]: samples per bin; as wide as the levels."""
        cells = np.array([self._levels * row + bin for row, group in enumerate(bins) for bin in group], dtype=np.intp)
        flat = np.bincount(cells, minlength=self._levels * len(bins))
        return flat.reshape(len(bins), self._levels).astype(np.float32)

    def _by_offset(self, table: Array) -> Array:
        """Sums along the diagonals of [level, level]."""
        skewed = np.pad(table[::-1], ((0, 0), (0, self._levels))).ravel()[: -self._levels]
        return np.asarray(skewed.reshape(self._levels, -1).sum(axis=0, dtype=np.float64))


def _normal(table: Array) -> Array:
    """Rows that sum to 1."""
    return np.asarray(table / table.sum(axis=-1, keepdims=True))


def _toeplitz(values: Array) -> Array:
    """Row i, column j: the value at offset j - i, which is 0 in the middle."""
    return sliding_window_view(values, len(values) // 2 + 1)[::-1].astype(np.float32)
