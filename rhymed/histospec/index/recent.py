"""The newest responses of all prompts of an engine, as one more source of drafts: prompts of one task share wording.

What a response is written into has a fixed size. When it is half full, responses are written into its successor, too,
which replaces it when it is full: so the newest half is always there, and nothing is ever copied or rebuilt.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rhymed.histospec.index import arena
from rhymed.histospec.index.index import UNLIMITED, Index

CAPACITY = 1 << 17  # tokens, a response rounded up to whole blocks: 3 MB, twice
ORDERS = 6, 3


class Recent:
    """For one thread at a time. `index`: to draft from; another one after some `add`."""

    def __init__(self, vocabulary: int = UNLIMITED, capacity: int = CAPACITY) -> None:
        self._vocabulary, self._capacity = vocabulary, capacity
        self.index = self._empty()
        self._next: Index | None = None

    def add(self, tokens: NDArray[np.int32]) -> None:
        """A finished response; of one longer than a quarter of the capacity only the end. ValueError for an id out
        of range."""
        fresh = tokens[-(self._capacity // 4) :]
        if not len(fresh):
            return
        if _used(self.index) + len(fresh) + 2 * arena.BLOCK > self._capacity:
            self.index, self._next = self._next or self._empty(), None
        self.index.add(fresh, age=1)
        if self._next is None and _used(self.index) > self._capacity // 2:
            self._next = self._empty()
        elif self._next is not None:
            self._next.add(fresh, age=1)

    def clear(self) -> None:
        self.index, self._next = self._empty(), None

    def _empty(self) -> Index:
        """Its array never grows: no sequence is shorter than a block."""
        return Index(
            np.zeros(0, np.int32),
            expected=self._capacity,
            room=self._capacity // arena.BLOCK + 2,
            vocabulary=self._vocabulary,
            orders=ORDERS,
        )


def _used(index: Index) -> int:
    return int(index.array[arena.USED])
