"""How similar an epoch is to the previous one: in its tokens, and in which prompts are long. Pure numpy.

The measure is a simple drafter: it looks up the last three tokens in the earlier responses to the same prompt, else
the last two, else one, and predicts the most frequent next token. Its hit rate bounds what drafts can save.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

LONGEST_MATCH = 3  # tokens

Ints = NDArray[np.int64]


def count_predicted(before: Sequence[NDArray[Any]], now: Sequence[NDArray[Any]]) -> int:
    """Tokens of `now` that the drafter predicts from `before`; ties are broken arbitrarily."""
    vocabulary, ranks = np.unique(np.concatenate([*before, *now]), return_inverse=True)
    size = len(vocabulary) + 1  # 0 is padding before a response
    seen, seen_next = _windows(ranks, 0, before, size)
    asked, asked_next = _windows(ranks, sum(map(len, before)), now, size)
    guess = np.zeros(len(asked_next), np.int64)  # 0: no prediction
    for length in range(LONGEST_MATCH, 0, -1):
        low = size**length  # a window of fewer tokens is the last digits of a longer one
        contexts, best = _most_frequent(seen % low, seen_next, size)
        at = np.searchsorted(contexts, asked % low)
        at[at == len(contexts)] = 0
        hit = (contexts[at] == asked % low) & (guess == 0) if len(contexts) else np.zeros(len(guess), bool)
        guess[hit] = best[at[hit]]
    return int(np.count_nonzero(guess == asked_next))


def _windows(ranks: Any, start: int, responses: Sequence[Any], size: int) -> tuple[Ints, Ints]:
    """For every token: the three before it as one number in base `size`, and the token itself, counted from 1."""
    windows, tokens = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for response in responses:
        own = ranks[start : start + len(response)].astype(np.int64) + 1
        padded = np.concatenate([np.zeros(LONGEST_MATCH, np.int64), own])
        window = np.zeros(len(own), np.int64)
        for offset in range(LONGEST_MATCH):
            window = window * size + padded[offset : offset + len(own)]
        windows.append(window)
        tokens.append(own)
        start += len(response)
    return np.concatenate(windows), np.concatenate(tokens)


def _most_frequent(contexts: Ints, following: Ints, size: int) -> tuple[Ints, Ints]:
    """The distinct contexts, ascending, and the most frequent next token of each."""
    distinct, number = np.unique(contexts, return_inverse=True)
    pairs, counts = np.unique(number * size + following, return_counts=True)
    order = np.lexsort((counts, pairs // size))
    last = np.flatnonzero(np.diff(pairs[order] // size, append=-1))
    return distinct, pairs[order][last] % size


def rank_correlation(left: Sequence[float], right: Sequence[float]) -> float | None:
    """Spearman's; None where it is not defined: fewer than three, or all equal on one side."""
    if len(left) < 3 or len(set(left)) == 1 or len(set(right)) == 1:
        return None
    return float(np.corrcoef(_ranks(left), _ranks(right))[0, 1])


def _ranks(values: Sequence[float]) -> NDArray[np.float64]:
    """Equal values share the mean of their ranks."""
    _, inverse, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    ranks: NDArray[np.float64] = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return ranks
