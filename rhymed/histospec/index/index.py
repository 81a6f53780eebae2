"""The history of one prompt as a source of drafts: its earlier responses, its running siblings, the prompt itself.

For one thread at a time. A full array is replaced by a larger copy; the old one stays a valid snapshot. Drafting from
an index is in `drafts`.

`Index` is one prompt's; `IndexCache` holds those of many.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from rhymed.histospec.index import arena
from rhymed.histospec.index.arena import HEADER, Array

UNLIMITED = 2**31 - 1


class Index:
    """`tokens`: in all sequences, the prompt included. A sequence is named by its row in the sequence table."""

    def __init__(
        self,
        prompt: NDArray[np.int32],
        *,
        expected: int = 0,
        room: int = 16,
        vocabulary: int = UNLIMITED,
        orders: tuple[int, int] = (8, 2),
    ) -> None:
        """`expected` tokens in `room` sequences fit without growing. Ids from `vocabulary` on are refused. `orders`:
        context lengths."""
        if not orders[0] >= orders[1] >= 1:
            raise ValueError(f"orders are (long, short), both at least 1, not {orders}")
        self._vocabulary = vocabulary
        self._take(arena.allocate(len(prompt) + expected + 8 * arena.BLOCK, room, orders, vocabulary))
        self._write(prompt, arena.PROMPT, 0)

    @property
    def tokens(self) -> int:
        return int(self.array[arena.TOKENS])

    @property
    def nbytes(self) -> int:
        return int(self.array.nbytes)

    @property
    def opened(self) -> int:
        return int(np.count_nonzero(self._sequences[:, arena.KIND] == arena.OPEN))

    def add(self, tokens: NDArray[np.int32], age: int) -> None:
        """Adds a response of an earlier epoch; age 1 is the last epoch. ValueError for an id out of range."""
        if age < 1:
            raise ValueError(f"age is epochs before now, at least 1, not {age}")
        self._write(tokens, arena.HISTORY, age)

    def open(self) -> int:
        """A new sequence for a running request. Returns its row. Its tokens are drafts for its siblings."""
        self._reserve(arena.BLOCK, 1)
        return arena.begin(self.address, arena.OPEN, 0)

    def close(self, row: int) -> None:
        """The request has ended; its text stays as a sibling's."""
        if not (0 <= row < self.array[arena.SEQUENCES] and self._sequences[row, arena.KIND] == arena.OPEN):
            raise ValueError(f"row {row} is not open")
        self._sequences[row, arena.KIND] = arena.CLOSED

    def resume(self, row: int) -> None:
        """A sequence that was closed goes on: the next turn of its sample follows."""
        if not (0 <= row < self.array[arena.SEQUENCES] and self._sequences[row, arena.KIND] == arena.CLOSED):
            raise ValueError(f"row {row} is not closed")
        self._sequences[row, arena.KIND] = arena.OPEN

    def grow(self, tokens: int, sequences: int = 0) -> None:
        """Moves to a larger array, with space for this many more and for half of the present size on top."""
        header = self.array[:HEADER]
        slots, room = int(header[arena.SLOTS]), int(header[arena.ROOM])
        if header[arena.USED] + tokens > slots:
            slots = int(header[arena.USED]) + tokens + slots // 2
        if header[arena.SEQUENCES] + sequences > room:
            room = int(header[arena.SEQUENCES]) + sequences + room // 2
        larger = arena.allocate(slots, room, (int(header[arena.LONG]), int(header[arena.SHORT])), self._vocabulary)
        arena.move(self.address, int(larger.ctypes.data))
        self._take(larger)

    @property
    def _sequences(self) -> Array:
        room, count = int(self.array[arena.ROOM]), int(self.array[arena.SEQUENCES])
        return self.array[len(self.array) - arena.FIELDS * room :].reshape(room, arena.FIELDS)[:count]

    def _take(self, array: Array) -> None:
        """`address` is that of `array`; both change when the index grows."""
        self.array, self.address = array, int(array.ctypes.data)

    def _reserve(self, tokens: int, sequences: int) -> None:
        header = self.array[:HEADER]
        full = header[arena.USED] + tokens > header[arena.SLOTS]
        if full or header[arena.SEQUENCES] + sequences > header[arena.ROOM]:
            self.grow(tokens, sequences)

    def _write(self, tokens: NDArray[np.int32], kind: int, age: int) -> None:
        fresh = np.ascontiguousarray(tokens, np.int32)
        check(fresh, self._vocabulary)
        self._reserve(len(fresh) + 1 + arena.BLOCK, 1)
        arena.append(self.address, arena.begin(self.address, kind, age), fresh)


def check(tokens: NDArray[np.int32], vocabulary: int) -> None:
    """ValueError unless all ids are in [0, vocabulary)."""
    if tokens.ndim != 1:
        raise ValueError(f"tokens must be a flat array, not of shape {tokens.shape}")
    if len(tokens) and not (tokens.min() >= 0 and tokens.max() < vocabulary):
        at = int(np.argmax((tokens < 0) | (tokens >= vocabulary)))
        raise ValueError(f"token id {tokens[at]} at position {at} is outside [0, {vocabulary})")


def extend(
    indexes: Sequence[Index], rows: NDArray[np.int32], fresh: NDArray[np.int32], offsets: NDArray[np.int32]
) -> NDArray[np.int64]:
    """Appends `fresh[offsets[i]:offsets[i + 1]]` to the sequence `rows[i]` of index i, for the whole batch. Returns
    the indexes' addresses. ValueError, and nothing is appended, if an id is out of range or a row not open."""
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


# The indexes of many prompts within a memory budget.
#
# When the budget is exceeded, the least recently used prompts without open sequences are evicted. Indexes in use
# stay: if these alone exceed the budget, new prompts get no index, and their requests run undrafted.


class IndexCache:
    """For one thread at a time."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._indexes: OrderedDict[Hashable, Index] = OrderedDict()
        self._measured: dict[Hashable, int] = {}  # bytes, when last measured
        self.nbytes = 0  # sum of these

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
        return True
