"""Splits a response's text where its tokens begin or stop being accepted drafts, and where its turns end. Pure.

Invariant: the pieces concatenated are the whole text. A character of several tokens is never split: it belongs to the
piece in which it begins.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rhymed.history.folder import Decode

BEFORE = 8  # preceding tokens that a piece is decoded with: some tokenizers drop a space at a text's start
BROKEN = "\ufffd"  # what the first tokens of a character are decoded to
LONGEST = 4  # bytes of a character, so tokens


class Piece(NamedTuple):
    text: str
    drafted: bool | None  # None: unknown


def pieces(decode: Decode, tokens: NDArray[np.uint32], drafted: NDArray[np.bool_] | None) -> list[Piece]:
    """`drafted`: per token. One piece where that is unknown, or where the text cannot be split."""
    return pieces_of_runs(decode, tokens, drafted, [0])[0]


def pieces_of_runs(
    decode: Decode, tokens: NDArray[np.uint32], drafted: NDArray[np.bool_] | None, runs: Sequence[int]
) -> list[list[Piece]]:
    """As above, for each run of the response; `runs`: where they begin, 0 first. All text is in the first run where
    it cannot be split."""
    (whole,) = decode([tokens])
    none: list[list[Piece]] = [[] for _ in runs[1:]]
    if not len(tokens) or (drafted is None and not none):
        return [[Piece(whole, None)], *none]
    changes = [] if drafted is None else (np.flatnonzero(drafted[1:] != drafted[:-1]) + 1).tolist()
    starts = whole_characters(decode, tokens, sorted({0, *changes, *runs}))

    def kind(start: int) -> tuple[int, bool | None]:
        return bisect_right(runs, start) - 1, None if drafted is None else bool(drafted[start])

    starts = [0, *(start for last, start in pairwise(starts) if kind(start) != kind(last))]
    texts = cut(decode, tokens, starts)
    if texts is None:
        return [[Piece(whole, None)], *none]
    found: list[list[Piece]] = [[] for _ in runs]
    for (run, draft), text in zip(map(kind, starts), texts, strict=True):
        if text:
            found[run].append(Piece(text, draft))
    return found


def cut(decode: Decode, tokens: NDArray[np.uint32], starts: list[int]) -> list[str] | None:
    """The texts of the parts that begin at these tokens, 0 first; None where they are not the whole text."""
    ends = [*starts[1:], len(tokens)]
    firsts = [max(0, start - BEFORE) for start in starts]
    before = decode([tokens[first:start] for first, start in zip(firsts, starts, strict=True)])
    both = decode([tokens[first:end] for first, end in zip(firsts, ends, strict=True)])
    texts = [text[len(prefix) :] for prefix, text in zip(before, both, strict=True)]
    return texts if "".join(texts) == decode([tokens])[0] else None


def whole_characters(decode: Decode, tokens: NDArray[np.uint32], starts: list[int]) -> list[int]:
    """These starts, each moved behind the character that it lies in; starts of empty pieces are dropped."""
    for _ in range(LONGEST - 1):
        tails = decode([tokens[max(0, start - BEFORE) : start] for start in starts])
        moved = [start + tail.endswith(BROKEN) for start, tail in zip(starts, tails, strict=True)]
        if moved == starts:
            break
        starts = sorted({start for start in moved if start < len(tokens)})
    return starts
