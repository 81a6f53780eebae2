"""How long responses will be. Pure: lengths come in, expectations come out.

In the logarithm of the length a prompt has a *level*; from one visit (a step that samples it) to the next the level
changes by a *drift*; a sample lies at the level plus *noise*, and ends at the cap. The three distributions are not
assumed: histograms learn them from the run (expectation-maximisation; older steps fade). Inference is Bayes' rule on
a grid of levels: siblings that ended are observations; one that runs, or reached the cap, is longer than that; a
prompt without history has the run's levels as its prior. Invariant: an answer depends on the reported lengths, not on
the order in which samples ended. Knows no workers.

`Model` below is what the answers are computed from; `Forecast` gives them.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, groupby
from operator import itemgetter
from typing import Any, Protocol

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

VISITS = 4  # the newest ones of a prompt's history: drift makes older ones worthless


class Lengths(Protocol):
    """A forecast of response lengths, in tokens that the policy writes; see `Forecast`."""

    def remember(self, prompt: str, past: Sequence[tuple[int, int]]) -> None: ...

    def open(self, step: int, prompts: Iterable[str]) -> None: ...

    def finished(self, step: int, prompt: str, tokens: int) -> None: ...

    def expect(self, step: int, prompt: str) -> float: ...

    def running(self, step: int, prompt: str, tokens: Iterable[int]) -> None: ...

    def left(self, step: int, prompt: str, tokens: int) -> float: ...

    def close(self, step: int) -> None: ...


class Forecast:
    """Lengths are response tokens that the policy writes, 1 to `cap` (`max_response_length`). Knows training steps,
    which close in order."""

    def __init__(self, cap: int) -> None:
        if not cap >= 1:
            raise ValueError(f"cap must be at least 1 token, not {cap}")
        self.cap = cap
        self._model = Model(cap)
        self._pending: dict[str, list[list[int]]] = {}  # visits that are not processed yet
        self._steps: dict[int, dict[str, GroupLengths]] = {}
        self._ended = 0  # samples of the run and its history
        self._learned = 0  # of these, when the model last learned

    def remember(self, prompt: str, past: Iterable[tuple[int, int]]) -> None:
        """`(step, tokens)` of its samples in closed steps, oldest first; replaces what was known of the prompt."""
        steps = groupby((entry for entry in past if entry[1] >= 1), key=itemgetter(0))  # 0 tokens: aborted
        if visits := [[self._bin(tokens) for _, tokens in visit] for _, visit in steps]:
            self._pending[prompt] = visits[-VISITS:]

    def open(self, step: int, prompts: Iterable[str]) -> None:
        """Optional: forecasts of many prompts cost less when they are computed together."""
        self._catch_up()
        self._model.refresh([self._group(step, prompt) for prompt in prompts])

    def finished(self, step: int, prompt: str, tokens: int) -> None:
        """A sample ended. More than the cap counts as the cap."""
        bin, group = self._bin(tokens), self._group(step, prompt)
        group.done.append(bin)
        if at := bisect_right(group.running, bin):
            del group.running[at - 1]  # it, or one of the same length
        group.tables.clear()
        self._ended += 1

    def running(self, step: int, prompt: str, tokens: Iterable[int]) -> None:
        """Tokens of each of its running samples. Replaces the last report."""
        reached, group = sorted(self._bin(count) for count in tokens if count), self._group(step, prompt)
        if group.running != reached:
            group.running = reached
            group.tables.clear()

    def expect(self, step: int, prompt: str) -> float:
        """Expected tokens of a sample that has not begun."""
        return min(max(1.0, float(self._table(step, prompt, 0)[1][0])), float(self.cap))

    def left(self, step: int, prompt: str, tokens: int) -> float:
        """Expected further tokens of a sample that has `tokens`. 0 at the cap."""
        if tokens >= self.cap:
            return 0.0
        longer, mass = self._beyond(self._table(step, prompt, tokens), tokens)
        return min(max(1.0, mass / longer - tokens), float(self.cap - tokens))

    def close(self, step: int) -> None:
        """The step is trained: its lengths are history now."""
        groups = [group for group in self._steps.get(step, {}).values() if group.done]
        self._steps = {key: value for key, value in self._steps.items() if key > step}  # older steps: late reports
        self._take(groups, groups)

    def _group(self, step: int, prompt: str) -> GroupLengths:
        groups = self._steps.setdefault(step, {})
        return groups.get(prompt) or groups.setdefault(prompt, GroupLengths(prompt))

    def _bin(self, tokens: float) -> int:
        """Raises ValueError for less than one token."""
        if not tokens >= 1:
            raise ValueError(f"a response cannot have {tokens} tokens")
        bins, width = self._model.bins, self._model.width
        return bins if tokens >= self.cap else min(int(math.log(tokens) / width), bins - 1)

    def _beyond(self, table: Table, tokens: int) -> tuple[float, float]:
        """P(more than `tokens`), and the expected tokens there, times that probability."""
        tokens, width = tokens or 1, self._model.width
        bin = min(self._bin(tokens), self._model.bins - 1)
        here, beyond = float(table[0][bin] - table[0][bin + 1]), float(table[0][bin + 1])
        part = bin + 1 - math.log(tokens) / width  # of the bin
        mass = here * (math.exp((bin + 1) * width) - tokens) / width
        return beyond + here * part, float(table[1][bin + 1]) + mass

    def _table(self, step: int, prompt: str, tokens: int) -> Table:
        if self._pending:
            self._catch_up()
        if self._has_news():
            self._learn()
        group = self._group(step, prompt)
        if group.version != self._model.version:
            self._model.refresh([group] if group.version < 0 else [*self._steps[step].values()])
        own = bisect_right(group.running, self._bin(tokens)) if tokens else 0
        without = group.running[own - 1] if own else -1  # its own progress is no evidence about itself
        if without not in group.tables:
            group.tables[without] = self._model.table(group, without)
        return group.tables[without]

    def _has_news(self) -> bool:
        """The samples have doubled since the model last learned."""
        return self._ended >= max(8, 2 * self._learned)

    def _learn(self) -> None:
        """From open steps too, if there is news."""
        if self._has_news():
            groups = [group for groups in self._steps.values() for group in groups.values()]
            self._model.learn([group for group in groups if group.done or group.running])
            self._learned = self._ended

    def _catch_up(self) -> None:
        """Processes remembered visits. The model also learns from prompts that are new to the run."""
        if not self._pending:
            return
        pending, self._pending = self._pending, {}
        new = {prompt for prompt in pending if self._model.known.pop(prompt, None) is None}
        for age in range(VISITS, 0, -1):
            groups = [GroupLengths(prompt, visits[-age]) for prompt, visits in pending.items() if len(visits) >= age]
            fresh = [group for group in groups if group.prompt in new]
            self._ended += sum(len(group.done) for group in fresh)
            self._take(groups, fresh)

    def _take(self, groups: Sequence[GroupLengths], fresh: Sequence[GroupLengths]) -> None:
        """These visits are over; the model learns from `fresh` ones."""
        self._model.learn(fresh, closed=True)
        self._learned = self._ended
        self._model.take(groups)


# The model of response lengths: histograms of levels, drifts and noises, and Bayes' rule with them. Pure.
# Its terms are those of the docstring above.

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

    def learn(self, groups: Sequence[GroupLengths], closed: bool = False) -> None:
        """Learn from these groups and the past. `closed`: they belong to the past now."""
        if not groups:
            return
        spread = groups[:: len(groups) // BATCH + 1]
        past = [(1 - FORGET * closed) * counts for counts in self._past]
        for _ in range(ROUNDS):
            counted = self._count(spread)
            total = [old + new for old, new in zip(past, counted, strict=True)]
            self._set(total)
        self.version += 1
        self._past = total if closed else self._past

    def refresh(self, groups: Sequence[GroupLengths]) -> None:
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

    def take(self, groups: Sequence[GroupLengths]) -> None:
        """These visits are over."""
        self.refresh(groups)
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

    def _count(self, groups: Sequence[GroupLengths]) -> tuple[Array, Array, Array]:
        """Expected counts of these groups' levels, drifts and noises (Dempster, Laird and Rubin 1977)."""
        old, prior = self._priors(groups)
        likely = self._likely(groups)
        total = (prior * likely).sum(axis=1, keepdims=True)
        level = prior * likely / total
        drift = self._drift * self._by_offset((old / total).T @ likely)
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
