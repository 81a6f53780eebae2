"""Overviews of all samples: response lengths by epoch, prompts in any order. Pure: columns in, rows out.

Epochs are defined in `rhymed_store.columns`: the ordinal of a prompt's training steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from rhymed.core.messages import EVAL
from rhymed_store.columns import SampleColumns

Sort = Literal["id", "reward", "length", "spread"]
Kind = Literal["training", "held-out", "imported"]
SORTS: tuple[Sort, ...] = get_args(Sort)
KINDS: tuple[Kind, ...] = get_args(Kind)
BINS = 40
REWARD_BINS = 20
MOST_EPOCHS = 200  # with a histogram; the newest

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Catalog:
    """Prompts are numbered in the order of their ids."""

    columns: SampleColumns

    @cached_property
    def epochs(self) -> NDArray[np.int64]:
        """Of every sample: its epoch; for imported history and evaluations, the step."""
        columns = self.columns
        trained = (columns.step >= 0) & (columns.step < EVAL)
        begins = np.ones(len(columns), bool)  # of a prompt's step
        begins[1:] = (columns.prompt[1:] != columns.prompt[:-1]) | (columns.step[1:] != columns.step[:-1])
        so_far = np.cumsum(begins & trained)
        before: NDArray[np.int64] = (so_far - (begins & trained))[self._starts]  # trained steps of earlier prompts
        return np.where(trained, so_far - 1 - before[self._numbers], columns.step)

    @cached_property
    def ids(self) -> list[str]:
        return [f"{int(number):016x}" for number in self.columns.prompt[self._starts]]

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        prompt = self.columns.prompt
        new = np.ones(len(prompt), bool)
        new[1:] = prompt[1:] != prompt[:-1]
        return np.flatnonzero(new)

    @cached_property
    def _numbers(self) -> NDArray[np.int64]:
        """Of every sample: its prompt's number."""
        return np.repeat(np.arange(len(self._starts)), self._counts)

    @cached_property
    def _counts(self) -> NDArray[np.int64]:
        return np.diff(np.append(self._starts, len(self.columns)))

    def _sums(self, values: NDArray[Any]) -> Floats:
        """By prompt."""
        return np.bincount(self._numbers, values, len(self._starts)).astype(np.float64)

    @cached_property
    def length(self) -> Floats:
        """Mean response length by prompt."""
        return self._sums(self.columns.length) / self._counts

    @cached_property
    def _scored(self) -> tuple[Floats, Floats]:
        """By prompt: how many samples have a reward, and its mean; NaN: none."""
        known = ~np.isnan(self.columns.reward)
        count = self._sums(known)
        with np.errstate(invalid="ignore"):
            return count, self._sums(np.where(known, self.columns.reward, 0.0)) / count

    @property
    def reward(self) -> Floats:
        return self._scored[1]

    @cached_property
    def spread(self) -> Floats:
        """Standard deviation of the rewards by prompt; NaN: no rewards."""
        count, mean = self._scored
        known = ~np.isnan(self.columns.reward)
        off = np.where(known, self.columns.reward - mean[self._numbers], 0.0)
        with np.errstate(invalid="ignore"):
            return np.sqrt(self._sums(off * off) / count)

    @cached_property
    def _epoch_counts(self) -> Floats:
        """Training epochs by prompt."""
        return np.maximum.reduceat(self._trained_epochs + 1, self._starts) if len(self.columns) else np.zeros(0)

    @property
    def _trained_epochs(self) -> NDArray[np.int64]:
        return np.where((self.epochs >= 0) & (self.epochs < EVAL), self.epochs, -1)

    @cached_property
    def _kinds(self) -> NDArray[np.int64]:
        """Place in `KINDS` by prompt. A prompt that is trained, too, is no held-out one."""
        evaluated = np.maximum.reduceat(self.columns.step, self._starts) if len(self.columns) else np.zeros(0)
        return np.where(self._epoch_counts > 0, 0, np.where(evaluated >= EVAL, 1, 2))

    @cached_property
    def kinds(self) -> dict[Kind, int]:
        """Number of prompts of each kind."""
        return {kind: int(np.count_nonzero(self._kinds == place)) for place, kind in enumerate(KINDS)}

    def order(self, sort: Sort, *, down: bool, kind: Kind | None = None) -> list[int]:
        """Prompts' numbers; unknown values come last, equal ones by id. `kind`: only these."""
        if sort == "id":
            numbers = np.arange(len(self._starts))[:: -1 if down else 1]
        else:
            values = {"reward": self.reward, "length": self.length, "spread": self.spread}[sort]
            numbers = np.argsort(-values if down else values, kind="stable")
        if kind is not None:
            numbers = numbers[self._kinds[numbers] == KINDS.index(kind)]
        return [int(number) for number in numbers]

    def rows(self, numbers: Sequence[int], texts: Sequence[str]) -> list[dict[str, Any]]:
        """`texts`: of these prompts."""
        return [
            {
                "id": self.ids[number],
                "text": text,
                "samples": int(self._counts[number]),
                "kind": KINDS[self._kinds[number]],
                "epochs": int(self._epoch_counts[number]),
                "reward": _number(self.reward[number]),
                "spread": _number(self.spread[number]),
                "length": float(self.length[number]),
            }
            for number, text in zip(numbers, texts, strict=True)
        ]

    @cached_property
    def lengths(self) -> list[dict[str, Any]]:
        """A histogram of response lengths per epoch, all with the same edges."""
        epochs, length = self._trained_epochs, self.columns.length
        longest = int(length[epochs >= 0].max(initial=0))
        width = max(1, -(-longest // BINS))
        edges = np.arange(0, width * BINS + 1, width)
        return [{**row, "max": int(row["max"] or 0)} for row in self._histograms(length, epochs, edges)]

    @cached_property
    def rewards(self) -> list[dict[str, Any]]:
        """A histogram of rewards per epoch, all with the same edges. Whole rewards are in the middle of their bin."""
        known = ~np.isnan(self.columns.reward)
        reward, epochs = self.columns.reward[known], self._trained_epochs[known]
        trained = reward[epochs >= 0]
        if not len(trained):
            return []
        low, high = float(trained.min()), float(trained.max())
        width = (high - low) / REWARD_BINS or 1.0
        edges = low + width * (np.arange(REWARD_BINS + 2 if high > low else 2) - 0.5)
        return self._histograms(reward, epochs, edges)

    def _histograms(
        self, values: NDArray[Any], epochs: NDArray[np.int64], edges: NDArray[Any]
    ) -> list[dict[str, Any]]:
        """One row per epoch, of the newest epochs."""
        newest = int(epochs.max(initial=-1))
        shown = range(max(0, newest + 1 - MOST_EPOCHS), newest + 1)
        return [_histogram(epoch, values[epochs == epoch], edges) for epoch in shown]


def _histogram(epoch: int, values: NDArray[Any], edges: NDArray[Any]) -> dict[str, Any]:
    return {
        "epoch": epoch,
        "edges": edges.tolist(),
        "counts": np.histogram(values, edges)[0].tolist(),
        "mean": float(values.mean()) if len(values) else None,
        "max": float(values.max()) if len(values) else None,
    }


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
