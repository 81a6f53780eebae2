"""Rewards by prompt in a run's store, and the difference of two runs' rewards with its standard error.

Two runs that answered the same prompts are compared prompt by prompt: how hard the prompts are then cancels out, and
much smaller differences show. Other prompts are compared by their means alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rhymed.errors import RhymedError
from rhymed.history.folder import find
from rhymed.messages import EVAL
from rhymed_store.inspect.columns import SampleColumns
from rhymed_store.shards.browse import StoreReader

ERRORS = 2.0  # standard errors: a larger difference is more than noise, at about 95 %
FEW = 8  # prompts: with fewer, the standard error itself is not known well enough

Means = Mapping[tuple[int, int], float]
"""(step or 0, prompt as a number) -> mean reward of its samples"""


@dataclass(frozen=True)
class Difference:
    """Of two runs' mean rewards."""

    first: float
    second: float
    prompts: int  # that were compared; of runs that are not paired, the smaller number
    paired: bool
    error: float | None  # standard error of the difference; None: of a single prompt

    @property
    def by(self) -> float:
        return self.second - self.first

    @property
    def is_known(self) -> bool:
        """There are enough prompts to judge."""
        return self.error is not None and self.prompts >= FEW

    @property
    def is_more_than_noise(self) -> bool:
        return self.is_known and abs(self.by) > ERRORS * (self.error or 0.0)


def columns_of(folder: Path) -> SampleColumns | None:
    """None: there is no store on this machine, or it cannot be read."""
    try:
        with StoreReader(find(folder)[1]) as reader:
            return reader.browse.columns()
    except RhymedError:
        return None


def held_out(columns: SampleColumns, version: int) -> Means:
    """Of the evaluation of this policy version."""
    return _means(columns, columns.step == EVAL + version, by_step=False)


def trained(columns: SampleColumns, first: int, end: int) -> Means:
    """Of the training steps from `first` to before `end`, each with its own prompts."""
    return _means(columns, (columns.step >= first) & (columns.step < end), by_step=True)


def prompts(columns: SampleColumns) -> set[int]:
    """Those that were trained on."""
    return set(columns.prompt[(columns.step >= 0) & (columns.step < EVAL)].tolist())


def difference(first: Means, second: Means) -> Difference | None:
    """Paired by prompt where at least half of both runs' prompts are the same. None: one run has no rewards."""
    if not first or not second:
        return None
    common = sorted(first.keys() & second.keys())
    if 2 * len(common) >= max(len(first), len(second)):
        a, b = (np.array([means[key] for key in common]) for means in (first, second))
        return Difference(float(a.mean()), float(b.mean()), len(common), True, standard_error(b - a))
    a, b = (np.array(list(means.values())) for means in (first, second))
    errors = standard_error(a), standard_error(b)
    error = None if None in errors else math.hypot(*(one or 0.0 for one in errors))
    return Difference(float(a.mean()), float(b.mean()), min(len(a), len(b)), False, error)


def standard_error(values: NDArray[np.float64]) -> float | None:
    """Of the mean. None: a single value has none."""
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else None


def _means(columns: SampleColumns, chosen: NDArray[np.bool_], *, by_step: bool) -> Means:
    chosen = chosen & ~np.isnan(columns.reward) & ~columns.dropped
    steps = columns.step[chosen] if by_step else np.zeros(int(chosen.sum()), np.int64)
    sums: dict[tuple[int, int], tuple[float, int]] = {}
    rows = zip(steps.tolist(), columns.prompt[chosen].tolist(), columns.reward[chosen].tolist(), strict=True)
    for step, prompt, reward in rows:
        total, count = sums.get((step, prompt), (0.0, 0))
        sums[step, prompt] = total + reward, count + 1
    return {key: total / count for key, (total, count) in sums.items()}
