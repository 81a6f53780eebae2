"""Splits a response's text where its tokens begin or stop being accepted drafts. Pure.

Invariant: the pieces concatenated are the whole text. A character of several tokens is never split: it belongs to the
piece in which it begins.
"""

from __future__ import annotations

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
    (whole,) = decode([tokens])
    if drafted is None or not len(tokens):
        return [Piece(whole, None)]
    changes = [0, *(np.flatnonzero(drafted[1:] != drafted[:-1]) + 1).tolist()]
    starts = whole_characters(decode, tokens, changes)
    starts = [0, *(start for last, start in pairwise(starts) if drafted[start] != drafted[last])]
    texts = cut(decode, tokens, starts)
    if texts is None:
        return [Piece(whole, None)]
    return [Piece(text, bool(drafted[start])) for text, start in zip(texts, starts, strict=True) if text]


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
