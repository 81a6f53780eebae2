"""What a sample's program asked and the policy wrote, in tokens: rows that share prefixes. Pure.

It finds what a prompt continues, so that only new tokens are stored, and which turn answers a prompt that was asked
before: the calls of a program that is started again.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.uint32]
Key = tuple[bytes, int | None, tuple[str, ...]]
"""A prompt's digest, the most tokens that were asked for, and the stop strings."""


class Record:
    def __init__(self) -> None:
        self._rows: list[Tokens] = []
        self._turns: list[tuple[int, int, int]] = []  # (row, length of the prompt, and with the turn)
        self._stored: dict[Key, list[int]] = {}
        self._asked: Counter[Key] = Counter()  # by this attempt of the program

    def __len__(self) -> int:
        return len(self._turns)

    def add(self, prompt: Tokens, tokens: Tokens, most: int | None = None, stop: Sequence[str] = ()) -> None:
        """The next turn."""
        number, end = len(self._turns), np.concatenate([prompt, tokens])
        row = next((row for row, own in enumerate(self._rows) if common(own, prompt) == len(own)), len(self._rows))
        self._rows[row : row + 1] = [end]
        self._turns.append((row, len(prompt), len(end)))
        self._stored.setdefault(_key(prompt, most, stop), []).append(number)

    def ask(self, prompt: Tokens, most: int | None = None, stop: Sequence[str] = ()) -> int | None:
        """The turn that answers it; None: it is to be written."""
        key = _key(prompt, most, stop)
        place, numbers = self._asked[key], self._stored.get(key, ())
        self._asked[key] += 1
        return numbers[place] if place < len(numbers) else None

    def continued(self, prompt: Tokens) -> tuple[int | None, int | None, Tokens]:
        """(after, kept) as in `Answer`, and the tokens of the prompt that are new."""
        if not self._rows:
            return None, None, prompt
        shared = [common(row, prompt) for row in self._rows]
        row = max(range(len(shared)), key=shared.__getitem__)
        kept = shared[row]
        after = next(number for number, (own, _, end) in enumerate(self._turns) if own == row and end >= kept)
        if after == len(self._turns) - 1 and kept == self._turns[after][2]:
            return None, None, prompt[kept:]
        return after, kept, prompt[kept:]

    def end(self, number: int) -> Tokens:
        """All tokens up to the end of a turn."""
        row, _, end = self._turns[number]
        return self._rows[row][:end]


def _key(prompt: Tokens, most: int | None, stop: Sequence[str]) -> Key:
    return hashlib.blake2b(prompt.tobytes(), digest_size=16).digest(), most, tuple(stop)


def common(first: Sequence[int] | Tokens, second: Sequence[int] | Tokens) -> int:
    """Length of the common prefix."""
    size = min(len(first), len(second))
    differ = np.flatnonzero(np.asarray(first[:size]) != np.asarray(second[:size]))
    return int(differ[0]) if len(differ) else size
