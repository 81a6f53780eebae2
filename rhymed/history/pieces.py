"""A response as pieces of text, cut where its tokens begin or cease to be accepted drafts. Pure.

Invariant: end to end the pieces are the text of the whole. A character that several tokens make is never cut: all of
it is in the piece where it begins.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rhymed.history.folder import Decode

BEFORE = 8  # tokens that a piece is decoded with: at a text's start some tokenizers leave out a space
BROKEN = "\ufffd"  # what the first tokens of a character are decoded to
LONGEST = 4  # bytes of a character, so tokens


class Piece(NamedTuple):
    text: str
    drafted: bool | None  # None: not known


def pieces(decode: Decode, tokens: NDArray[np.uint32], drafted: NDArray[np.bool_] | None) -> list[Piece]:
    """`drafted`: of each token. One piece where that is not known, or where the text cannot be cut."""
    (whole,) = decode([tokens])
    if drafted is None or not len(tokens):
        return [Piece(whole, None)]
    changes = [0, *(np.flatnonzero(drafted[1:] != drafted[:-1]) + 1).tolist()]
    starts = _whole_characters(decode, tokens, changes)
    starts = [0, *(start for last, start in pairwise(starts) if drafted[start] != drafted[last])]
    ends = [*starts[1:], len(tokens)]
    firsts = [max(0, start - BEFORE) for start in starts]
    before = decode([tokens[first:start] for first, start in zip(firsts, starts, strict=True)])
    both = decode([tokens[first:end] for first, end in zip(firsts, ends, strict=True)])
    texts = [text[len(known) :] for known, text in zip(before, both, strict=True)]
    if "".join(texts) != whole:
        return [Piece(whole, None)]
    return [Piece(text, bool(drafted[start])) for text, start in zip(texts, starts, strict=True) if text]


def _whole_characters(decode: Decode, tokens: NDArray[np.uint32], starts: list[int]) -> list[int]:
    """Those of the places, each moved to the end of the character that it is in; what is empty then goes."""
    for _ in range(LONGEST - 1):
        tails = decode([tokens[max(0, start - BEFORE) : start] for start in starts])
        moved = [start + tail.endswith(BROKEN) for start, tail in zip(starts, tails, strict=True)]
        if moved == starts:
            break
        starts = sorted({start for start in moved if start < len(tokens)})
    return starts
