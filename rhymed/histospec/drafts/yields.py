"""How many tokens each forward of a request made, and so which of them were accepted drafts.

A forward makes its accepted drafts, and behind these one token without a draft. One byte a forward; a forward of 255
tokens or more is bytes of 255, and behind them the one byte below that. Pure: knows neither drafts nor engines.
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
            self._stand_at(max(0, length - made))
        self.tokens += made
        while made >= MOST:
            self._made.append(MOST)
            made -= MOST
        self._made.append(made)

    def _stand_at(self, place: int) -> None:
        """Tokens behind it were taken back; those before it that nobody has told of count as made without a draft."""
        while self.tokens > place:
            self.tokens -= self._made.pop()
        while self._made and self._made[-1] == MOST:  # its end is gone
            self.tokens -= self._made.pop()
        self._made += b"\x01" * (place - self.tokens)
        self.tokens = place

    def __bytes__(self) -> bytes:
        return bytes(self._made)


def accepted(yields: bytes, length: int) -> NDArray[np.bool_]:
    """Which of a response's `length` tokens were accepted drafts; none of those that the yields do not reach.

    Tokens that the last forward made behind the response's end do not count.
    """
    made = np.frombuffer(yields, np.uint8)
    ends = np.cumsum(made, dtype=np.int64)
    mask = np.zeros(length, np.bool_)
    mask[: ends[-1] if len(ends) else 0] = True
    alone = ends[made < MOST] - 1
    mask[alone[(alone >= 0) & (alone < length)]] = False
    return mask
