"""Carried tokens: response tokens that a request made before, with older weights or in another engine.

Position-keyed sampling uses the same noise again, so nearly all of these tokens are sampled again. They are a
request's drafts while its response equals their beginning; after the first difference they serve as one more past
response, see `requests`. Pure: knows neither the index nor the engine.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from rhymed.histospec.drafts.types import Drafts

log = logging.getLogger(__name__)

PRIOR = 0.98  # probability that a carried token is sampled again
PRIOR_TOKENS = 50.0  # observations that the prior counts as
MEMORY = 2000.0  # tokens after which an observation has lost its weight


class Carried:
    """Of one request. `kept`: how many of its tokens were sampled again before the first difference."""

    def __init__(self, tokens: Sequence[int] = ()) -> None:
        """`tokens`: the response from its first token on; all are in the vocabulary."""
        self.tokens = list(tokens)
        self.kept = 0
        self._length = 0  # of the response

    def follow(self, fresh: Sequence[int], length: int) -> tuple[int, bool]:
        """The response has `length` tokens now and `fresh` are the last ones. If they are all, it is compared again.
        Returns how many more carried tokens were kept, and whether the first difference is among `fresh`."""
        start, before, whole = length - len(fresh), self.kept, self.kept == self._length
        if start <= before:
            self.kept = start + _common_prefix(self.tokens[start:length], fresh)
        self._length = length
        return max(0, self.kept - before), whole and self.kept < min(length, len(self.tokens))

    def ahead(self, most: int) -> list[int]:
        """The next carried tokens, at most `most`; none after a difference."""
        return self.tokens[self.kept : self.kept + most] if self.kept == self._length else []


class CarriedDrafts:
    """The carried tokens of all requests. `rate`: the probability that the next one is sampled again."""

    def __init__(self, vocabulary: int) -> None:
        """`vocabulary`: token ids from here on belong to another tokenizer."""
        self._vocabulary = vocabulary
        self._tried, self._same = PRIOR_TOKENS, PRIOR * PRIOR_TOKENS
        self.refused = 0  # requests whose carried tokens are invalid

    @property
    def rate(self) -> float:
        return self._same / self._tried

    def take(self, name: str, tokens: Any) -> Carried:
        """Checks a request's carried tokens: none if they are not token ids, with one warning for all requests. They
        end before the first id that is not in the vocabulary."""
        try:
            return Carried(_checked(tokens, self._vocabulary))
        except ValueError as error:
            self.refused += 1
            if self.refused == 1:
                log.warning(
                    "request %s: its carried tokens are ignored, as are all invalid ones from now on: %s", name, error
                )
        return Carried()

    def follow(self, carried: Carried, fresh: Sequence[int], length: int) -> None:
        """See `Carried.follow`; updates the rate."""
        same, differs = carried.follow(fresh, length)
        tried = same + differs
        if tried:
            fade = (1 - 1 / MEMORY) ** tried
            self._tried, self._same = fade * self._tried + tried, fade * self._same + same

    def put(self, drafts: Drafts, ahead: Sequence[list[int]]) -> None:
        """Replaces the drafts of requests with carried tokens `ahead`, at most as many as columns."""
        if not any(ahead):
            return
        survival = np.power(self.rate, np.arange(1, drafts.tokens.shape[1] + 1))
        for row, tokens in enumerate(ahead):
            if tokens:
                count = len(tokens)
                drafts.lengths[row] = count
                drafts.tokens[row, :count] = tokens
                drafts.survival[row, :count] = survival[:count]


def _common_prefix(ours: Sequence[int], theirs: Sequence[int]) -> int:
    for position, (our, their) in enumerate(zip(ours, theirs, strict=False)):
        if our != their:
            return position
    return len(ours)


def _checked(tokens: Any, vocabulary: int) -> list[int]:
    """The ids before the first one that is not in [0, vocabulary). ValueError unless it is one row of integers."""
    if tokens is None:
        return []
    if isinstance(tokens, str | bytes | dict | set):
        raise ValueError(f"a list of token ids expected, not {type(tokens).__name__}")
    try:
        array = np.asarray(tokens)
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"a list of token ids expected: {error}") from None
    if array.shape == (0,):
        return []
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(f"a list of token ids expected, not an array of {array.dtype} and shape {array.shape}")
    outside = np.flatnonzero((array < 0) | (array >= vocabulary))
    return [int(token) for token in array[: outside[0] if len(outside) else None]]
