"""When the head's pass pays. Pure: times, probabilities and results come in.

The pass is a fixed cost of a step, as nothing of it is saved where few of its tokens are verified. It runs only where
the expected rate of the step, tokens per second, with its drafts and its cost is clearly above the rate of history
alone. Both rates are the budget's; what the head's drafts are worth is the mean of those it has made lately. Since
such predictions err, the measured gain decides: below `LEAST` the head pauses, each time in a row for longer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rhymed.histospec.drafts.budget import Budget, Pause, Probe
from rhymed.histospec.drafts.cost import CostCurve
from rhymed.histospec.drafts.frequencies import note, tally
from rhymed.histospec.jit import native

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


class Worth:
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
        worth = expected(survival, lengths)
        offered = np.minimum(limits, len(self.survival)).astype(np.int32)
        rows = np.flatnonzero(self.survival.cumsum()[offered - 1] * (offered > 0) > worth)
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
