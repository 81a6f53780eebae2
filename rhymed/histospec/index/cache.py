"""The indexes of many prompts within a memory budget.

When the budget is exceeded, the least recently used prompts without open sequences are evicted. Indexes in use stay:
if these alone exceed the budget, new prompts get no index, `refused` counts them, and their requests run undrafted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator

from rhymed.histospec.index.index import Index


class IndexCache:
    """For one thread at a time. `evicted` and `refused` count prompts."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.evicted = self.refused = 0
        self._indexes: OrderedDict[Hashable, Index] = OrderedDict()
        self._measured: dict[Hashable, int] = {}  # bytes, when last measured
        self.nbytes = 0  # sum of these

    def __len__(self) -> int:
        return len(self._indexes)

    def __iter__(self) -> Iterator[Hashable]:
        """Prompts, the least recently used first."""
        return iter(self._indexes)

    def get(self, prompt: Hashable) -> Index | None:
        """The prompt's index, which becomes the most recently used."""
        if (index := self._indexes.get(prompt)) is not None:
            self._indexes.move_to_end(prompt)
        return index

    def put(self, prompt: Hashable, index: Index) -> bool:
        """Adds an index or replaces the prompt's older one. False if there is no room."""
        old = self._indexes.get(prompt)
        if old is not None and old.opened:
            raise ValueError("an index with open sequences cannot be replaced")
        if not self._make_room(index.nbytes - self._measured.get(prompt, 0), keep=prompt):
            self.refused += 1
            return False
        self._indexes[prompt] = index
        self._indexes.move_to_end(prompt)
        self.measure(prompt)
        return True

    def drop(self, prompt: Hashable) -> None:
        """Removes a prompt, in use or not."""
        self._indexes.pop(prompt, None)
        self.nbytes -= self._measured.pop(prompt, 0)

    def measure(self, prompt: Hashable) -> None:
        """Indexes grow while their requests run: call this when these have ended."""
        if (index := self._indexes.get(prompt)) is not None:
            self.nbytes += index.nbytes - self._measured.get(prompt, 0)
            self._measured[prompt] = index.nbytes

    def _make_room(self, more: int, keep: Hashable) -> bool:
        """Evicts until `more` bytes fit; False, and nothing is evicted, if indexes in use take too much. Visits only
        as many prompts as needed: there may be ten thousand."""
        excess, idle = self.nbytes + more - self.max_bytes, []
        for prompt, index in self._indexes.items():
            if excess <= 0:
                break
            if prompt != keep and not index.opened:
                idle.append(prompt)
                excess -= self._measured[prompt]
        if excess > 0:
            return False
        for prompt in idle:
            self.drop(prompt)
        self.evicted += len(idle)
        return True
