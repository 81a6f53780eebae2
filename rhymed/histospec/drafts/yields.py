"""How many tokens each forward of a request made, and so which of them were accepted drafts.

A forward makes its accepted drafts and then one token without a draft. One byte per forward; a forward of 255 tokens
or more is one or more bytes of 255 and then one smaller byte. Pure: knows neither drafts nor engines.
"""

from __future__ import annotations

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
