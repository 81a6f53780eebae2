"""How long responses will be. Pure: lengths come in, expectations and quantiles come out.

In the logarithm of the length a prompt has a *level*; from one visit (a step that samples it) to the next the level
changes by a *drift*; a sample lies at the level plus *noise*, and ends at the cap. The three distributions are not
assumed: histograms learn them from the run (expectation-maximisation; older steps fade). Inference is Bayes' rule on
a grid of levels: siblings that ended are observations; one that runs, or reached the cap, is longer than that; a
prompt without history has the run's levels as its prior. Invariant: an answer depends on the reported lengths, not on
the order in which samples ended. Knows no workers.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Protocol

from rhymed_broker.levels import GroupLengths, Model, Table
from rhymed_broker.slices import Slices, sliced

VISITS = 4  # the newest ones of a prompt's history: drift makes older ones worthless


class Lengths(Protocol):
    """A forecast of response lengths, in tokens; see `Forecast`, and `TurnForecast` for what `turns` are."""

    def remember(self, prompt: str, past: Sequence[tuple[int, int]], turns: Sequence[Sequence[int]] = ()) -> None: ...

    def open(self, step: int, prompts: Iterable[str]) -> None: ...

    def settle(self, step: int) -> None: ...

    def finished(self, step: int, prompt: str, tokens: int, turns: Sequence[int] = ()) -> None: ...

    def expect(self, step: int, prompt: str) -> float: ...

    def running(self, step: int, prompt: str, tokens: Iterable[int]) -> None: ...

    def left(self, step: int, prompt: str, tokens: int, turns: Sequence[int] = ()) -> float: ...

    def close(self, step: int) -> None: ...


class Forecast:
    """Lengths are response tokens, 1 to `cap` (`max_response_length`). Knows training steps, which close in order."""

    def __init__(self, cap: int) -> None:
        if not cap >= 1:
            raise ValueError(f"cap must be at least 1 token, not {cap}")
        self.cap = cap
        self._model = Model(cap)
        self._pending: dict[str, list[list[int]]] = {}  # visits that are not processed yet
        self._steps: dict[int, dict[str, GroupLengths]] = {}
        self._ended = 0  # samples of the run and its history
        self._learned = 0  # of these, when the model last learned

    def remember(self, prompt: str, past: Iterable[tuple[int, int]], turns: Sequence[Sequence[int]] = ()) -> None:
        """`(step, tokens)` of its samples in closed steps, oldest first; replaces what was known of the prompt."""
        steps = groupby((entry for entry in past if entry[1] >= 1), key=itemgetter(0))  # 0 tokens: aborted
        if visits := [[self._bin(tokens) for _, tokens in visit] for _, visit in steps]:
            self._pending[prompt] = visits[-VISITS:]

    @sliced
    def open(self, step: int, prompts: Iterable[str]) -> Slices[None]:
        """Optional: forecasts of many prompts cost less when they are computed together."""
        yield from self._catch_up.slices()
        yield from self._model.refresh.slices([self._group(step, prompt) for prompt in prompts])

    @sliced
    def settle(self, step: int) -> Slices[None]:
        """Optional: does now, for a whole step, what the next question about the step would do."""
        yield from self._catch_up.slices()
        yield from self._learn.slices()
        groups = [*self._steps.get(step, {}).values()]
        if any(group.version not in (-1, self._model.version) for group in groups):
            yield from self._model.refresh.slices(groups)

    def finished(self, step: int, prompt: str, tokens: int, turns: Sequence[int] = ()) -> None:
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

    def left(self, step: int, prompt: str, tokens: int, turns: Sequence[int] = ()) -> float:
        """Expected further tokens of a sample that has `tokens`. 0 at the cap."""
        if tokens >= self.cap:
            return 0.0
        longer, mass = self._beyond(self._table(step, prompt, tokens), tokens)
        return min(max(1.0, mass / longer - tokens), float(self.cap - tokens))

    def quantile(self, step: int, prompt: str, q: float, tokens: int = 0) -> float:
        """The total length that a sample with `tokens` does not exceed with probability `q`."""
        if not 0 <= q <= 1:
            raise ValueError(f"a quantile is between 0 and 1, not {q}")
        if tokens >= self.cap:
            return float(self.cap)
        longer, _ = table = self._table(step, prompt, tokens)
        rest = (1 - q) * self._beyond(table, tokens)[0]
        bin = max(0, self._model.bins - int(longer[::-1].searchsorted(rest)))
        if bin == self._model.bins:
            return float(self.cap)
        above, below = float(longer[bin]), float(longer[bin + 1])
        part = min(1.0, max(0.0, above - rest) / (above - below or 1.0))
        return min(max(1.0, tokens, math.exp((bin + part) * self._model.width)), float(self.cap))

    @sliced
    def close(self, step: int) -> Slices[None]:
        """The step is trained: its lengths are history now."""
        groups = [group for group in self._steps.get(step, {}).values() if group.done]
        self._steps = {key: value for key, value in self._steps.items() if key > step}  # older steps: late reports
        yield from self._take.slices(groups, groups)

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

    @sliced
    def _learn(self) -> Slices[None]:
        """From open steps too, if there is news."""
        if self._has_news():
            groups = [group for groups in self._steps.values() for group in groups.values()]
            yield from self._model.learn.slices([group for group in groups if group.done or group.running])
            self._learned = self._ended

    @sliced
    def _catch_up(self) -> Slices[None]:
        """Processes remembered visits. The model also learns from prompts that are new to the run."""
        if not self._pending:
            return
        pending, self._pending = self._pending, {}
        new = {prompt for prompt in pending if self._model.known.pop(prompt, None) is None}
        for age in range(VISITS, 0, -1):
            groups = [GroupLengths(prompt, visits[-age]) for prompt, visits in pending.items() if len(visits) >= age]
            fresh = [group for group in groups if group.prompt in new]
            self._ended += sum(len(group.done) for group in fresh)
            yield from self._take.slices(groups, fresh)

    @sliced
    def _take(self, groups: Sequence[GroupLengths], fresh: Sequence[GroupLengths]) -> Slices[None]:
        """These visits are over; the model learns from `fresh` ones."""
        yield from self._model.learn.slices(fresh, closed=True)
        self._learned = self._ended
        yield from self._model.take.slices(groups)
