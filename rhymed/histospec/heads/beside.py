"""A head's drafts beside those of history, step by step for a batch of requests. Knows neither vLLM nor torch.

Each request has one draft, of history or of the head: the one of which more tokens are expected to be right. A draft
of the head ends after `depth` tokens. What it drafts changes the speed only, as with all drafts.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from rhymed.histospec.drafts.budget import Budget
from rhymed.histospec.drafts.types import Drafts
from rhymed.histospec.heads.worth import Calibration, Worth, expected

Rows = NDArray[np.int64]


class Source(Protocol):
    """A head that can draft for the requests of a batch after a step."""

    depth: int  # most tokens of a draft

    @property
    def guess(self) -> Sequence[float]:
        """The survival of its drafts by depth, as it was measured when it was fitted."""

    def draft(self, rows: Rows) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """(tokens, leads of their scores) for these requests. Both [rows, depth]."""


class Made(NamedTuple):
    """What the head has drafted for a step."""

    rows: Rows  # of the batch
    tokens: NDArray[np.int32]  # [rows, depth]
    cells: NDArray[np.int32]
    used: NDArray[np.bool_]  # [rows]; False: history's draft was better
    alone: float  # tokens per second that history alone was expected to make
    seconds: float  # of the pass


class Counts(NamedTuple):
    """Of a head, since it was loaded."""

    passes: int = 0
    drafted: int = 0  # tokens that were better than history's
    verified: int = 0
    accepted: int = 0
    seconds: float = 0.0  # of the passes

    def __str__(self) -> str:
        rate = self.accepted / self.verified if self.verified else 0.0
        each = 1000 * self.seconds / self.passes if self.passes else 0.0
        return (
            f"{self.passes:,} passes of {each:.1f} ms, {self.drafted:,} tokens drafted, {self.verified:,} verified,"
            f" {rate:.0%} of these accepted"
        )


class Beside:
    def __init__(self, source: Source) -> None:
        self.source = source
        self.seconds = 0.0  # of the pass in this step
        self._depth = source.depth
        self.worth = Worth(source.guess)
        self._calibration = Calibration(source.depth)
        self._made: Made | None = None
        self._before: Made | None = None  # for the step before
        self.counts = Counts()

    def add(self, drafts: Drafts, limits: NDArray[np.int32], budget: Budget) -> NDArray[np.bool_]:
        """Replaces the drafts of some requests by the head's, and says of which. `limits`: most tokens of each; 0
        where the head may not draft."""
        self.seconds, self._made, self._before = 0.0, None, self._made
        taken = np.zeros(len(limits), np.bool_)
        rows, alone = self.worth.choose(budget, drafts.survival, drafts.lengths, limits)
        if not len(rows):
            return taken
        began = time.perf_counter()
        tokens, leads = self.source.draft(rows)
        cells = self._calibration.cells(leads)
        survival = self._calibration.survival(cells)
        lengths = np.minimum(limits[rows], self._depth).astype(np.int32)
        used = expected(survival, lengths) > expected(drafts.survival[rows], drafts.lengths[rows])
        width = min(self._depth, drafts.tokens.shape[1])
        chosen = rows[used]
        drafts.tokens[chosen, :width], drafts.survival[chosen, :width] = tokens[used, :width], survival[used, :width]
        drafts.lengths[chosen] = np.minimum(lengths[used], width)
        taken[chosen] = True
        self.seconds = time.perf_counter() - began
        self.worth.drafted(survival, self.seconds)
        self._add(1, int(lengths[used].sum()), seconds=self.seconds)
        self._made = Made(rows, tokens, cells, used, alone, self.seconds)
        return taken

    def learn(self, verified: NDArray[np.int32], accepted: NDArray[np.int32], next_token: NDArray[np.int32]) -> None:
        """The results of the step that `add` drafted for, by the rows of its batch. `next_token`: -1 if unknown. The
        first token of a draft is compared even where it was not verified."""
        if (made := self._made) is None:
            return
        tried = np.where(made.used, np.minimum(verified[made.rows], self._depth), 0).astype(np.int32)
        right = np.where(made.used, np.minimum(accepted[made.rows], tried), 0).astype(np.int32)
        self._add(verified=int(tried.sum()), accepted=int(right.sum()))
        untried = (tried == 0) & (next_token[made.rows] >= 0)
        right[untried] = made.tokens[untried, 0] == next_token[made.rows][untried]
        tried[untried] = 1
        self._calibration.observe(made.cells, tried, right)

    def timed(self, made: int, seconds: float, verified: bool) -> None:
        """The step that ended when `add` was called last: it only decoded, and made `made` tokens in `seconds`, the
        head's pass for the next one left out. `verified`: it verified drafts."""
        before = self._before
        if before is not None and verified and before.used.any():
            self.worth.observe(made, before.alone, seconds + before.seconds)

    def _add(
        self, passes: int = 0, drafted: int = 0, verified: int = 0, accepted: int = 0, seconds: float = 0.0
    ) -> None:
        old = self.counts
        self.counts = Counts(
            old.passes + passes,
            old.drafted + drafted,
            old.verified + verified,
            old.accepted + accepted,
            old.seconds + seconds,
        )
