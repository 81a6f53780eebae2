"""The history of one prompt as a source of drafts: its earlier responses, its running siblings, the prompt itself.

One thread at a time uses an index. A larger array takes the place of one that is full: whoever still holds the old
one holds a valid snapshot. What is drafted from an index is in `draft`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rhymed.histospec.index import arena
from rhymed.histospec.index.arena import HEADER, Array

UNLIMITED = 2**31 - 1


@dataclass(frozen=True)
class Weights:
    """How much a response's vote weighs; a running sibling's is 1.

    `recency` for each further epoch of age, `reward` as a power of two for each unit of reward within [-1, 1].
    """

    recency: float = 1.0
    reward: float = 0.0
    history: float = 1.0

    def of(self, age: int, reward: float | None) -> int:
        """A vote's weight in units of 1 / `arena.ONE`, at least one unit; a reward that is None or NaN is 0."""
        known = 0.0 if reward is None or math.isnan(reward) else reward
        gain = self.reward * min(max(known, -1.0), 1.0)
        return max(round(arena.ONE * self.history * math.pow(self.recency, age - 1) * math.pow(2.0, gain)), 1)


class Index:
    """`tokens` (all of its sequences, the prompt included) and `nbytes` tell its size."""

    def __init__(
        self,
        prompt: NDArray[np.int32],
        *,
        expected: int = 0,
        vocabulary: int = UNLIMITED,
        orders: tuple[int, int] = (8, 2),
        weights: Weights | None = None,
    ) -> None:
        """`expected` tokens fit without growing; ids from `vocabulary` on are refused; `orders`: context lengths."""
        if not orders[0] >= orders[1] >= 1:
            raise ValueError(f"orders are (long, short), both at least 1, not {orders}")
        self._weights = weights or Weights()
        self._vocabulary = vocabulary
        self._take(arena.allocate(len(prompt) + expected + 8 * arena.BLOCK, 16, orders, vocabulary))
        self._write(prompt, arena.PROMPT, arena.ONE, 0)

    @property
    def tokens(self) -> int:
        return int(self.array[arena.TOKENS])

    @property
    def nbytes(self) -> int:
        return int(self.array.nbytes)

    @property
    def opened(self) -> int:
        """How many rows are open."""
        return int(np.count_nonzero(self._sequences[:, arena.KIND] == arena.OPEN))

    def add(self, tokens: NDArray[np.int32], age: int, reward: float | None = None) -> None:
        """A finished response of an earlier epoch; age 1 is the last one. ValueError for an id out of range."""
        if age < 1:
            raise ValueError(f"age counts epochs back from now, from 1 on, not {age}")
        self._write(tokens, arena.HISTORY, self._weights.of(age, reward), age)

    def open(self) -> int:
        """A row for a request that starts now: it drafts, and its tokens draft for its siblings."""
        self._reserve(arena.BLOCK, 1)
        return arena.begin(self.address, arena.OPEN, arena.ONE, 0)

    def close(self, row: int, reward: float | None = None) -> None:
        """The request has finished; its text stays as a sibling's. A reward known by then weighs as in history."""
        if not (0 <= row < self.array[arena.SEQUENCES] and self._sequences[row, arena.KIND] == arena.OPEN):
            raise ValueError(f"row {row} is not open")
        self._sequences[row, arena.KIND] = arena.CLOSED
        if reward is not None:
            self._sequences[row, arena.WEIGHT] = self._weights.of(1, reward)

    def length(self, row: int) -> int:
        """Tokens of a row so far."""
        return int(self._sequences[row, arena.LENGTH])

    def grow(self, tokens: int, sequences: int = 0) -> None:
        """A larger array with space for so many more tokens and sequences, and half of the present size on top."""
        header = self.array[:HEADER]
        slots, room = int(header[arena.SLOTS]), int(header[arena.ROOM])
        if header[arena.USED] + tokens > slots:
            slots = int(header[arena.USED]) + tokens + slots // 2
        if header[arena.SEQUENCES] + sequences > room:
            room = int(header[arena.SEQUENCES]) + sequences + room // 2
        orders = int(header[arena.LONG]), int(header[arena.SHORT])
        larger = arena.allocate(slots, room, orders, self._vocabulary)
        arena.move(self.address, int(larger.ctypes.data))
        self._take(larger)

    @property
    def _sequences(self) -> Array:
        room, count = int(self.array[arena.ROOM]), int(self.array[arena.SEQUENCES])
        return self.array[len(self.array) - arena.FIELDS * room :].reshape(room, arena.FIELDS)[:count]

    def _take(self, array: Array) -> None:
        """`address` is where `array` lies; both change when the index grows."""
        self.array, self.address = array, int(array.ctypes.data)

    def _reserve(self, tokens: int, sequences: int) -> None:
        header = self.array[:HEADER]
        full = header[arena.USED] + tokens > header[arena.SLOTS]
        if full or header[arena.SEQUENCES] + sequences > header[arena.ROOM]:
            self.grow(tokens, sequences)

    def _write(self, tokens: NDArray[np.int32], kind: int, weight: int, age: int) -> None:
        fresh = np.ascontiguousarray(tokens, np.int32)
        check(fresh, self._vocabulary)
        self._reserve(len(fresh) + 1 + arena.BLOCK, 1)
        arena.append(self.address, arena.begin(self.address, kind, weight, age), fresh)


def check(tokens: NDArray[np.int32], vocabulary: int) -> None:
    """ValueError unless all ids are in [0, vocabulary)."""
    if tokens.ndim != 1:
        raise ValueError(f"tokens are one flat array, not one of shape {tokens.shape}")
    if len(tokens) and not (tokens.min() >= 0 and tokens.max() < vocabulary):
        at = int(np.argmax((tokens < 0) | (tokens >= vocabulary)))
        raise ValueError(f"token id {tokens[at]} at position {at} is outside [0, {vocabulary})")


def extend(
    indexes: Sequence[Index], rows: NDArray[np.int32], fresh: NDArray[np.int32], offsets: NDArray[np.int32]
) -> NDArray[np.int64]:
    """Tokens `fresh[offsets[i]:offsets[i + 1]]` behind row `rows[i]` of index i, in one call for the batch.

    Answers the indexes' addresses. ValueError, and nothing appended, for an id out of range or a row not open.
    """
    addresses = np.array([index.address for index in indexes], np.int64)
    while True:
        outcome, i = arena.extend(addresses, rows, fresh, offsets)
        if outcome == arena.DONE:
            return addresses
        if outcome == arena.BAD_TOKEN:
            check(fresh[offsets[i] : offsets[i + 1]], indexes[i]._vocabulary)
        if outcome == arena.NOT_OPEN:
            raise ValueError(f"row {rows[i]} is not open")
        indexes[i].grow(int(indexes[i].array[arena.NEED]))
        for at, index in enumerate(indexes):
            addresses[at] = index.address
