"""Drafts of the engine's own head (EAGLE-3, MTP) among those of history. Knows neither vLLM nor torch.

Each request has one draft, of history or of the head: the one of which more tokens are expected to be right. The
engine has run its head in any case, so what is left to decide is which of its tokens are verified. vLLM does not say
how sure its head is; a token counts as right as often as those of its depth were.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rhymed.histospec.drafts.trust import note, tally
from rhymed.histospec.drafts.types import Drafts
from rhymed.histospec.jit import native


class EngineDrafts:
    """`add` before a step, `learn` after it."""

    def __init__(self, depth: int) -> None:
        """`depth`: tokens that the head drafts for each request."""
        self._tally = tally(np.full(depth, 0.5))
        self._tokens_BK = np.zeros((0, depth), np.int32)
        self._taken_B = np.zeros(0, np.bool_)  # the request's draft is the head's
        self._asked_B = np.zeros(0, np.bool_)  # the head's first token stands where the request's next one does
        self.verified = self.accepted = 0  # tokens of the head

    def add(
        self, drafts: Drafts, tokens_BK: NDArray[np.int32], limits_B: NDArray[np.int32], *, paused: bool = False
    ) -> NDArray[np.bool_]:
        """Replaces the drafts of some requests by the head's, `tokens_BK`, and says of which. `limits_B`: most tokens
        of each; 0: its next token follows a prompt that is not whole yet, or there is none. `paused`: nothing is
        replaced."""
        depth = min(tokens_BK.shape[1], drafts.tokens.shape[1])
        lengths = np.zeros_like(limits_B) if paused else np.minimum(limits_B, depth)
        survival = np.broadcast_to(np.cumprod(self._tally.share[:depth]), (len(lengths), depth))
        taken = _expected(survival, lengths) > _expected(drafts.survival, drafts.lengths)
        drafts.tokens[taken, :depth], drafts.survival[taken, :depth] = tokens_BK[taken, :depth], survival[taken]
        drafts.lengths[taken] = lengths[taken]
        self._tokens_BK, self._taken_B, self._asked_B = tokens_BK, taken, limits_B > 0
        return taken

    def learn(self, verified_B: NDArray[np.int32], accepted_B: NDArray[np.int32], next_B: NDArray[np.int32]) -> None:
        """The results of the step that `add` drafted for, by the rows of its batch. `next_B`: the token that came
        next, -1 if unknown: whether the head's first one was right is known even where it was not verified."""
        tried = np.where(self._taken_B, np.minimum(verified_B, self._tokens_BK.shape[1]), 0).astype(np.int32)
        right = np.minimum(accepted_B, tried)
        self.verified, self.accepted = self.verified + int(tried.sum()), self.accepted + int(right.sum())
        untried = (tried == 0) & (next_B >= 0) & self._asked_B
        right[untried] = self._tokens_BK[untried, 0] == next_B[untried]
        tried[untried] = 1
        _learn(tried, right, self._tally)


@native
def _learn(tried_B: NDArray[np.int32], right_B: NDArray[np.int32], seen: object) -> None:
    for i in range(len(tried_B)):
        for depth in range(min(tried_B[i], right_B[i] + 1)):
            note(seen, depth, 1.0 if depth < right_B[i] else 0.0)  # type: ignore[arg-type]


def _expected(survival_BK: NDArray[np.float32], lengths_B: NDArray[np.int32]) -> NDArray[np.float32]:
    """Expected right tokens of each draft; beyond a draft's length there is anything."""
    there = np.arange(survival_BK.shape[1]) < lengths_B[:, None]
    summed: NDArray[np.float32] = np.where(there, survival_BK, np.float32(0)).sum(1)
    return summed
