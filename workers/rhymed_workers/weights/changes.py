"""A slice as changes to the same slice of another file: positions and new values. Pure.

At small learning rates few bfloat16 values change in a step. Values are compared as 16-bit words, of whatever type.
Layout, little-endian: number of bytes of the gaps (uint32), gaps, values (uint16). A gap is the number of unchanged
words before a changed one, in bytes that are added up: 255 adds 255 and continues, a smaller one ends the gap. What
results is verified by the digest of the whole slice, so a wrong base is detected.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rhymed.errors import MalformedMessage

SHARE = 8  # changes are sent if they are at most this part of the slice: a relay keeps them in memory
SAMPLE = 1 << 14  # words that are compared first
WORD_BYTES = 2
CONTINUE = 255


def encode(old: Any, new: Any) -> bytes | None:
    """Changes from `old` to `new`, buffers of equal length; None if they are too many, or the length is odd."""
    if len(old) != len(new) or len(new) % WORD_BYTES:
        return None
    before, after = np.frombuffer(old, "<u2"), np.frombuffer(new, "<u2")
    limit = len(new) // SHARE
    most = limit // (WORD_BYTES + 1)  # a change takes its value and at least one byte of gap
    step = max(1, len(after) // SAMPLE)
    if np.count_nonzero(before[::step] != after[::step]) * step > 2 * most + step:
        return None
    changed = _changed(before, after)
    if len(changed) > most:
        return None
    gaps = _gap_bytes(np.diff(changed, prepend=-1) - 1)
    content = len(gaps).to_bytes(4, "little") + gaps.tobytes() + after[changed].tobytes()
    return content if len(content) <= limit else None


def apply(old: Any, changes: Any, new: bytearray) -> memoryview:
    """The new slice, in the first bytes of `new`, which is at least as long. Raises `MalformedMessage` if the changes
    do not fit. A buffer that is used again saves the time in which the system finds new pages."""
    content = memoryview(new)[: len(old)]
    content[:] = old
    words = np.frombuffer(content, "<u2")
    gap_bytes = int.from_bytes(changes[:4], "little")
    gaps = np.frombuffer(changes[4 : 4 + gap_bytes], np.uint8)
    tail = changes[4 + gap_bytes :]
    if len(changes) < 4 or len(gaps) != gap_bytes or len(tail) % WORD_BYTES:
        raise MalformedMessage(f"changes of {len(changes)} bytes are cut off")
    values = np.frombuffer(tail, "<u2")
    ends = gaps != CONTINUE
    positions = (np.cumsum(np.where(ends, gaps.astype(np.int64) + 1, CONTINUE)) - 1)[ends]
    if len(positions) != len(values) or (len(positions) and positions[-1] >= len(words)):
        raise MalformedMessage(f"{len(values)} changed values at {len(positions)} positions of {len(words)}")
    words[positions] = values
    return content


def _changed(before: NDArray[np.uint16], after: NDArray[np.uint16]) -> NDArray[np.int64]:
    """Positions of unequal words. Compares four at once where it can: few are unequal."""
    whole = len(after) // 4 * 4
    fours = np.flatnonzero(before[:whole].view("<u8") != after[:whole].view("<u8"))
    inside = fours[:, None] * 4 + np.arange(4)
    found = inside[before[inside] != after[inside]]
    rest = whole + np.flatnonzero(before[whole:] != after[whole:])
    return np.concatenate([found, rest])


def _gap_bytes(gaps: NDArray[np.int64]) -> NDArray[np.uint8]:
    lengths = gaps // CONTINUE + 1
    content = np.full(int(lengths.sum()), CONTINUE, np.uint8)
    content[np.cumsum(lengths) - 1] = gaps % CONTINUE
    return content
