"""The indexes of many prompts within a budget of bytes.

Where it is exceeded, prompts without open rows go, the least recently used first. What is in use always stays: when
that alone is over the budget, no new prompt gets an index, `refused` counts it, and its requests run undrafted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator

from rhymed.histospec.index.index import Index


class Shelf:
    """One thread at a time. `evicted` and `refused` count prompts."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.evicted = self.refused = 0
        self._indexes: OrderedDict[Hashable, Index] = OrderedDict()
        self._counted: dict[Hashable, int] = {}  # bytes, when they were last looked at
        self.nbytes = 0  # as counted

    def __len__(self) -> int:
        return len(self._indexes)

    def __iter__(self) -> Iterator[Hashable]:
        """Prompts, the least recently used first."""
        return iter(self._indexes)

    def get(self, prompt: Hashable) -> Index | None:
        """The prompt's index, which counts as used."""
        index = self._indexes.get(prompt)
        if index is not None:
            self._indexes.move_to_end(prompt)
        return index

    def put(self, prompt: Hashable, index: Index) -> bool:
        """Takes an index, in the place of an older one of that prompt; False where there is no room for it."""
        old = self._indexes.get(prompt)
        if old is not None and old.opened:
            raise ValueError("an index with open rows cannot be replaced")
        if not self._make_room(index.nbytes - self._counted.get(prompt, 0), keep=prompt):
            self.refused += 1
            return False
        self._indexes[prompt] = index
        self._indexes.move_to_end(prompt)
        self.count(prompt)
        return True

    def drop(self, prompt: Hashable) -> None:
        """Forgets a prompt, in use or not."""
        self._indexes.pop(prompt, None)
        self.nbytes -= self._counted.pop(prompt, 0)

    def count(self, prompt: Hashable) -> None:
        """An index has grown while its rows ran: to be called when they have ended."""
        index = self._indexes.get(prompt)
        if index is not None:
            self.nbytes += index.nbytes - self._counted.get(prompt, 0)
            self._counted[prompt] = index.nbytes

    def _make_room(self, more: int, keep: Hashable) -> bool:
        """Evicts until the rest and `more` bytes are within the budget; False where what is in use is too much.

        Looks at the least recently used ones only, as far as needed: there may be ten thousand.
        """
        excess, idle = self.nbytes + more - self.max_bytes, []
        for prompt, index in self._indexes.items():
            if excess <= 0:
                break
            if prompt != keep and not index.opened:
                idle.append(prompt)
                excess -= self._counted[prompt]
        if excess > 0:
            return False
        for prompt in idle:
            self.drop(prompt)
        self.evicted += len(idle)
        return True
