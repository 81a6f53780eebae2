"""Files of lines in the order of their times: where the part after a time begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import IO


def first_after(file: IO[bytes], is_before: Callable[[bytes], bool | None], longest: int) -> int:
    """The start of a line, at most `longest` bytes before the first one that is not before, by binary search.
    `is_before`: None: the line has no time. `longest`: bytes of a line that are read."""
    low, high = 0, file.seek(0, 2)
    while high - low > longest:
        middle = (low + high) // 2
        file.seek(middle)
        file.readline(longest)  # the rest of a line
        before = None
        while before is None and (start := file.tell()) < high:
            before = is_before(file.readline(longest))
        if before:
            low = start
        else:
            high = middle
    return low
