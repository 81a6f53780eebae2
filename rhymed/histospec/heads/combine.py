"""Drafts of a head combined with those of history, step by step for a batch of requests. Knows neither vLLM nor
torch.

Each request has one draft, of history or of the head: the one of which more tokens are expected to be right. A draft
of the head ends after `depth` tokens. What it drafts changes the speed only, as with all drafts. `HeadGain` decides
whether the head's pass pays.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from rhymed.histospec.drafts.budget import Budget, CostCurve, Pause, Probe
from rhymed.histospec.drafts.trust import note, tally
from rhymed.histospec.drafts.types import Drafts
from rhymed.histospec.jit import native

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


class Combined:
    def __init__(self, source: Source) -> None:
        self.source = source
        self.seconds = 0.0  # of the pass in this step
        self._depth = source.depth
        self.gain = HeadGain(source.guess)
        self._calibration = Calibration(source.depth)
        self._made: Made | None = None
        self._before: Made | None = None  # for the step before
        self.counts = Counts()

    def add(self, drafts: Drafts, limits: NDArray[np.int32], budget: Budget) -> NDArray[np.bool_]:
        """Replaces the drafts of some requests by the head's, and says of which. `limits`: most tokens of each; 0
        where the head may not draft."""
        self.seconds, self._made, self._before = 0.0, None, self._made
        taken = np.zeros(len(limits), np.bool_)
        rows, alone = self.gain.choose(budget, drafts.survival, drafts.lengths, limits)
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
        self.gain.drafted(survival, self.seconds)
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
            self.gain.observe(made, before.alone, seconds + before.seconds)

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


# When the head's pass pays. Pure: times, probabilities and results come in.
#
# The pass is a fixed cost of a step, as nothing of it is saved where few of its tokens are verified. It runs only
# where the expected rate of the step, tokens per second, with its drafts and its cost is clearly above the rate of
# history alone. Both rates are the budget's; what the head's drafts are worth is the mean of those it has made
# lately. Since such predictions err, the measured gain decides: below `LEAST` the head pauses, each time in a row for
# longer.

LEADS = np.array([0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 9.0], np.float32)  # nats; lower ends of the classes
INERTIA = 1 / 64  # weight of one step in the mean survival
GUESS = (0.5, 0.3, 0.2, 0.1)  # survival by depth of a head of which nothing is known
LEAST = 1.03  # expected gain over history alone at which the pass runs


class HeadPause(Pause):
    """A head that does not pay seldom begins to: until it is fitted again, its acceptance only falls."""

    LONGEST = 2048


class Calibration:
    """The probability that a head's token is right, by the lead of its score and its depth; given that those before
    it were right. Learned from verification."""

    def __init__(self, depth: int) -> None:
        lead, _ = np.ix_(LEADS + 0.25, np.arange(depth))
        prior = np.broadcast_to(1 / (1 + np.exp(0.3 - 0.7 * lead)), (len(LEADS), depth)).reshape(-1)
        self._tally = tally(np.ascontiguousarray(prior, np.float64))
        self._depth = depth

    def cells(self, lead_BK: NDArray[np.float32]) -> NDArray[np.int32]:
        """The evidence for each token. Shape: [B, K]."""
        classes = np.searchsorted(LEADS, lead_BK, side="right").clip(1) - 1
        return np.asarray(classes * self._depth + np.arange(lead_BK.shape[1]), np.int32)

    def survival(self, cells_BK: NDArray[np.int32]) -> NDArray[np.float32]:
        """The probability that all tokens up to this one are right."""
        return np.cumprod(self._tally.share[cells_BK], axis=1, dtype=np.float32)

    def observe(self, cells_BK: NDArray[np.int32], tried_B: NDArray[np.int32], right_B: NDArray[np.int32]) -> None:
        """Of draft i the first `tried_B[i]` tokens were compared, and the first `right_B[i]` were right."""
        _learn(cells_BK, tried_B, right_B, self._tally)


@native
def _learn(cells_BK: NDArray[np.int32], tried_B: NDArray[np.int32], right_B: NDArray[np.int32], seen: object) -> None:
    for i in range(len(tried_B)):
        for j in range(min(tried_B[i], right_B[i] + 1, cells_BK.shape[1])):
            note(seen, cells_BK[i, j], 1.0 if j < right_B[i] else 0.0)  # type: ignore[arg-type]


class HeadGain:
    """`choose` before a pass, `drafted` after it, `observe` after the step that verified its drafts."""

    def __init__(self, guess: Sequence[float] = GUESS) -> None:
        """`guess`: survival by depth before there are drafts."""
        self.survival = np.array(guess, np.float32)
        self._cost = CostCurve(1024)
        self._pause, self._probe = HeadPause(), Probe()

    def choose(
        self, budget: Budget, survival: NDArray[np.float32], lengths: NDArray[np.int32], limits: NDArray[np.int32]
    ) -> tuple[NDArray[np.int64], float]:
        """(Requests for which the head drafts, expected tokens per second of history alone). `survival`, `lengths`:
        of history's drafts; `limits`: most tokens of the head's, 0 where it may not draft. Call it once per step."""
        alone = budget.rate(survival, lengths)
        paused = self._pause.now()
        by_history = expected(survival, lengths)
        offered = np.minimum(limits, len(self.survival)).astype(np.int32)
        rows = np.flatnonzero(self.survival.cumsum()[offered - 1] * (offered > 0) > by_history)
        if paused or not len(rows):
            return rows[:0], alone
        mixed, longer = survival.copy(), lengths.copy()
        width = min(len(self.survival), mixed.shape[1])  # drafts may be shorter than the head's
        mixed[rows, :width] = self.survival[:width]
        longer[rows] = offered[rows]
        pass_s = self._cost.predict(len(rows), len(rows)) if self._cost.observed else 0.0  # it is tried
        pays = budget.rate(mixed, longer, pass_s) >= LEAST * alone
        probed = self._probe.now(bool(pays))
        return (rows if pays or probed else rows[:0]), alone

    def drafted(self, survival: NDArray[np.float32], seconds: float) -> None:
        """`survival` [drafts, depth]: of what one pass has drafted, in `seconds`."""
        self._cost.observe(len(survival), len(survival), seconds)
        self.survival += INERTIA * (survival.mean(0) - self.survival)

    def observe(self, made: int, alone: float, seconds: float) -> None:
        """A step that verified drafts of the head made `made` tokens in `seconds`, the head's pass included. `alone`:
        tokens per second that history alone was expected to make."""
        self._pause.observe(made / alone, seconds)


def expected(survival: NDArray[np.float32], lengths: NDArray[np.int32]) -> NDArray[np.float32]:
    """Expected right tokens of each draft; beyond a draft's length there is anything."""
    there = np.arange(survival.shape[1]) < lengths[:, None]
    summed: NDArray[np.float32] = np.where(there, survival, np.float32(0)).sum(1)
    return summed
