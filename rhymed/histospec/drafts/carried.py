"""Carried tokens: what a request made before, with older weights or in another engine, drafts for it now.

Under position-keyed sampling the noise of a position is the same again, so nearly all of these tokens come out again.
A request drafts from them while its response equals their beginning; what comes behind the first difference serves
as one more past response, see `seats`. Pure: knows neither the index nor the engine.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from rhymed.histospec.drafts.types import Drafts

log = logging.getLogger(__name__)

PRIOR = 0.98  # probability that a carried token comes out again
WORTH = 50.0  # tokens that the prior counts as
MEMORY = 2000.0  # tokens: what is older has lost its weight


class Carried:
    """Of one request. `kept`: how many of its tokens, from the first on, came out again before one did not."""

    def __init__(self, tokens: Sequence[int] = ()) -> None:
        """`tokens` of the response, from its first one on; all are in the vocabulary."""
        self.tokens = list(tokens)
        self.kept = 0
        self._length = 0  # of the response

    def follow(self, fresh: Sequence[int], length: int) -> tuple[int, bool]:
        """The response has `length` tokens now, `fresh` are the last ones; when they are all of it, it starts anew.

        Returns how many more carried tokens came out again, and whether the first one that did not is among `fresh`.
        """
        start, before, whole = length - len(fresh), self.kept, self.kept == self._length
        if start <= before:
            self.kept = start + _common(self.tokens[start:length], fresh)
        self._length = length
        return max(0, self.kept - before), whole and self.kept < min(length, len(self.tokens))

    def ahead(self, most: int) -> list[int]:
        """The next tokens, at most so many, if the response goes on as before; none from a difference on."""
        return self.tokens[self.kept : self.kept + most] if self.kept == self._length else []


class Carrying:
    """The carried tokens of all requests. `rate`: how probable it is that the next one comes out again."""

    def __init__(self, vocabulary: int) -> None:
        """`vocabulary`: token ids from here on belong to another tokenizer."""
        self._vocabulary = vocabulary
        self._tried, self._same = WORTH, PRIOR * WORTH
        self.refused = 0  # requests that carry what are not tokens

    @property
    def rate(self) -> float:
        return self._same / self._tried

    def take(self, name: str, given: Any) -> Carried:
        """What a request carries; nothing, with one warning for all requests, when these are not token ids.

        From the first id on that is not in the vocabulary, nothing is carried.
        """
        try:
            return Carried(_tokens(given, self._vocabulary))
        except ValueError as error:
            self.refused += 1
            if self.refused == 1:
                log.warning("request %s: what it carries is not used, here and wherever it is so: %s", name, error)
        return Carried()

    def follow(self, carried: Carried, fresh: Sequence[int], length: int) -> None:
        """See `Carried.follow`; the rate learns from it."""
        same, differs = carried.follow(fresh, length)
        tried = same + differs
        if tried:
            fade = (1 - 1 / MEMORY) ** tried
            self._tried, self._same = fade * self._tried + tried, fade * self._same + same

    def lay(self, drafts: Drafts, ahead: Sequence[list[int]]) -> None:
        """Takes the place of a request's draft where there are tokens `ahead` of it, at most as many as columns."""
        if not any(ahead):
            return
        survival = np.power(self.rate, np.arange(1, drafts.tokens.shape[1] + 1))
        for row, tokens in enumerate(ahead):
            if tokens:
                count = len(tokens)
                drafts.lengths[row] = count
                drafts.tokens[row, :count] = tokens
                drafts.survival[row, :count] = survival[:count]


def _common(ours: Sequence[int], theirs: Sequence[int]) -> int:
    for place, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one != other:
            return place
    return len(ours)


def _tokens(given: Any, vocabulary: int) -> list[int]:
    """The ids up to the first one that is not in [0, vocabulary). ValueError for anything but one row of integers."""
    if given is None:
        return []
    if isinstance(given, str | bytes | dict | set):
        raise ValueError(f"a list of token ids expected, not {type(given).__name__}")
    try:
        array = np.asarray(given)
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"a list of token ids expected: {error}") from None
    if array.shape == (0,):
        return []
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(f"a list of token ids expected, not an array of {array.dtype} and shape {array.shape}")
    strange = np.flatnonzero((array < 0) | (array >= vocabulary))
    return [int(token) for token in array[: strange[0] if len(strange) else None]]
