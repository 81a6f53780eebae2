"""How many tokens each forward of a request made, and so which of them were accepted drafts.

A forward makes its accepted drafts and then one token without a draft. One byte per forward; a forward of 255 tokens
or more is one or more bytes of 255 and then one smaller byte. Pure: knows neither drafts nor engines.

`Account` sums what drafting gained and cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import add, sub

import numpy as np
from numpy.typing import NDArray

MOST = 255  # what a byte holds


class Yields:
    """Of one request. Invariant: the bytes add up to `tokens`."""

    def __init__(self) -> None:
        self.tokens = 0
        self._made = bytearray()

    def add(self, made: int, length: int) -> None:
        """A forward made the last `made` of now `length` response tokens."""
        if self.tokens + made != length:
            self._rewind(max(0, length - made))
        self.tokens += made
        while made >= MOST:
            self._made.append(MOST)
            made -= MOST
        self._made.append(made)

    def _rewind(self, length: int) -> None:
        """Tokens after `length` were discarded; unreported ones before it count as made without a draft."""
        while self.tokens > length:
            self.tokens -= self._made.pop()
        while self._made and self._made[-1] == MOST:  # its last byte was discarded
            self.tokens -= self._made.pop()
        self._made += b"\x01" * (length - self.tokens)
        self.tokens = length

    def __bytes__(self) -> bytes:
        return bytes(self._made)


def accepted(yields: bytes, length: int) -> NDArray[np.bool_]:
    """Mask of a response's `length` tokens: which were accepted drafts. False for tokens beyond the yields. Tokens
    that the last forward made after the response's end are ignored."""
    made = np.frombuffer(yields, np.uint8)
    ends = np.cumsum(made, dtype=np.int64)
    mask = np.zeros(length, np.bool_)
    mask[: ends[-1] if len(ends) else 0] = True
    undrafted = ends[made < MOST] - 1
    mask[undrafted[(undrafted >= 0) & (undrafted < length)]] = False
    return mask


# Gain and cost of drafting: per request, and summed.


@dataclass
class Account:
    """Times are of steps between which the engine was not idle; a request gets an equal share of each of its steps.

    `plain_s` estimates plain decoding of the same tokens: one step without drafts for each token, as long as the cost
    curve predicts, but not longer than the real step. A step without drafts counts as it is, and what a step did for
    prompts counts in both: where requests come and go, it is a part of the time that drafts do not shorten.
    """

    forwards: int = 0  # steps that decoded it
    drafted: int = 0  # tokens that were verified
    accepted: int = 0
    timed_s: float = 0.0
    plain_s: float = 0.0
    draft_s: float = 0.0  # part of `timed_s`; without indexing histories, which another thread does
    carried: int = 0  # tokens that were made before, in another engine or with other weights
    kept: int = 0  # of these, sampled again before the first difference

    def __add__(self, other: Account) -> Account:
        return Account(*map(add, vars(self).values(), vars(other).values()))

    def __sub__(self, other: Account) -> Account:
        return Account(*map(sub, vars(self).values(), vars(other).values()))

    def __str__(self) -> str:
        if not self.forwards:
            return "nothing decoded"
        tokens = f"{1 + self.accepted / self.forwards:.2f} tokens per step and request"
        if self.carried:
            tokens += f", {self.kept / self.carried:.0%} of {self.carried:,} carried tokens kept"
        if not self.drafted:
            return f"{tokens}, nothing drafted"
        gain = f", about {self.plain_s / self.timed_s:.2f} times as fast as without" if self.timed_s else ""
        return f"{tokens}, {self.accepted / self.drafted:.0%} of {self.drafted:,} drafted tokens accepted{gain}"
