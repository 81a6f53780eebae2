"""Drafts for a batch of running requests, step by step. Knows neither vLLM nor where history comes from.

Every engine step it hears which tokens were made, extends the live sequences with them, drafts for all requests in
one call, and lets the budget decide how many of these tokens the next step verifies. What a request generates drafts
for its siblings at once. History may arrive from the library at any time: the prompt's requests then move to the new
index, and the old one is let go. A request that carries tokens drafts from these first, see `carried`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from itertools import accumulate, chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rhymed.histospec.drafts.budget import Aimd, Budget
from rhymed.histospec.drafts.calibration import Calibration
from rhymed.histospec.drafts.carried import Carrying
from rhymed.histospec.drafts.requests import Asked, Row, Seats
from rhymed.histospec.drafts.stats import Account
from rhymed.histospec.drafts.trust import Trust
from rhymed.histospec.drafts.types import Drafts, Noise
from rhymed.histospec.drafts.types import Settings as Matching
from rhymed.histospec.drafts.voting import draft
from rhymed.histospec.index.builder import Library
from rhymed.histospec.index.index import Index
from rhymed.histospec.settings import Settings


class Batch(NamedTuple):
    """What an engine's step was; a row a running request, in the engine's order."""

    requests: list[str]
    made: list[list[int]]  # tokens that the step made; none: the prompt is not all prefilled
    lengths: list[int]  # response tokens so far, `made` included
    verified: list[int]  # drafted tokens that the step ran
    limits: NDArray[np.int32]  # tokens that the next step may make beyond its first one
    over: list[int]  # rows that will make no more tokens
    decoded_only: bool  # nothing was prefilled
    noise: Noise | None = None  # that the next tokens will be drawn by, where it is known


class Last(NamedTuple):
    """What the step before was given, a row a request."""

    requests: list[str]
    drafts: Drafts
    carried: NDArray[np.bool_]  # whose drafts are carried tokens
    ended_s: float  # when it was handed out


class Drafter:
    """`describe` tells of a request by its id, or None when the engine has forgotten it: it has ended."""

    def __init__(
        self,
        settings: Settings,
        library: Library,
        describe: Callable[[str], Asked | None],
        *,
        width: int,
        largest: int,
        seen: Callable[[Asked], None] | None = None,
        ended: Callable[[Asked], None] | None = None,
    ) -> None:
        """`width`: tokens of a draft, at most. `largest`: tokens that one step may hold.

        `seen` hears of every prompt none of whose requests was running, `ended` of every response that is whole.
        """
        self._settings = settings
        self._carrying = Carrying(library.vocabulary)
        self._seats = Seats(library, describe, self._carrying.take, settings.memory_mib << 20, seen, ended)
        paper = settings.matching == "paper"
        self._matching = Matching(longest=width, floor=0.0 if paper else 0.02, backoff=paper)
        self._budget, self._aimd, self._calibration = Budget(largest), Aimd(), Calibration()
        self._trust = Trust()
        self._last: Last | None = None
        self._resting = False
        self.total = Account()  # of all requests

    def step(self, batch: Batch) -> list[list[int]]:
        """Drafts for the next step, a list a request."""
        began = time.perf_counter()
        self._learn(batch)
        rows = self._seats.seat(batch.requests)
        for row in batch.over:
            self._seats.end(rows[row])
        drafts, carried = self._draft(rows, batch)
        lengths = self._choose(drafts, carried)
        taken = [drafts.tokens[row, :count].tolist() if count else [] for row, count in enumerate(lengths.tolist())]
        ended = time.perf_counter()
        self._count(rows, batch, began, ended)
        self._last = Last(batch.requests.copy(), drafts, carried, ended)
        return taken

    def interrupted(self) -> None:
        """Others had the machine since the last step, so the time until the next one says nothing.

        Where the engine idled or loaded weights, the next step mostly prefills and is not timed anyway.
        """
        if self._last is not None:
            self._last = self._last._replace(ended_s=math.inf)

    def account(self, name: str) -> Account | None:
        """What drafting did for this request; ended ones are remembered for a while."""
        return self._seats.account(name)

    def take_yields(self, name: str) -> bytes | None:
        """How many tokens each of its forwards made, see `yields`; told once."""
        return self._seats.take_yields(name)

    def close(self) -> None:
        """Responses that run count as ended."""
        self._seats.close()

    def _draft(self, rows: Sequence[Row], batch: Batch) -> tuple[Drafts, NDArray[np.bool_]]:
        """And whose are carried tokens."""
        fresh = [
            made if row.tokens + len(made) == length else row.reopen(length)
            for row, made, length in zip(rows, batch.made, batch.lengths, strict=True)
        ]
        for row, tokens, length in zip(rows, fresh, batch.lengths, strict=True):
            row.tokens = length
            if row.carried.tokens:
                self._carrying.follow(row.carried, tokens, length)
        limits = np.minimum(batch.limits, self._matching.longest)
        ahead = [
            row.carried.ahead(limit) if row.carried.tokens else []
            for row, limit in zip(rows, limits.tolist(), strict=True)
        ]
        carried = np.array([bool(one) for one in ahead], bool)
        self._resting = self._settings.budget == "rate" and self._budget.resting()
        if self._resting:
            limits = np.minimum(limits, 1)  # what this one teaches, see `_learn`
        if self._settings.budget == "aimd":
            limits = np.minimum(limits, np.array([self._aimd.limit(one) for one in batch.requests], np.int32))
        drafts = draft(
            [row.index for row in rows],
            np.array([row.live for row in rows], np.int32),
            np.fromiter(chain.from_iterable(fresh), np.int32),
            np.array([0, *accumulate(map(len, fresh))], np.int32),
            np.where(carried, np.int32(0), limits),
            self._matching,
            self._calibration,
            self._trust,
            None if self._matching.backoff else batch.noise,
        )
        self._carrying.lay(drafts, ahead)
        return drafts, carried

    def _choose(self, drafts: Drafts, carried: NDArray[np.bool_]) -> NDArray[np.int32]:
        if self._settings.budget != "rate":
            return drafts.lengths
        offered = np.where(carried, drafts.lengths, np.int32(0)) if self._resting else drafts.lengths
        return self._budget.choose(drafts.survival, offered)

    def _learn(self, batch: Batch) -> None:
        """From what was made, and which drafted tokens were accepted; carried ones say nothing about the others."""
        last = self._last
        if last is None:
            return
        accepted = [max(0, len(made) - 1) for made in batch.made]
        first = [made[0] if made else -1 for made in batch.made]
        verified = batch.verified
        if last.requests != batch.requests:
            now = {request: row for row, request in enumerate(batch.requests)}
            rows = [now.get(request) for request in last.requests]
            accepted = [0 if row is None else accepted[row] for row in rows]
            verified = [0 if row is None else verified[row] for row in rows]
            first = [-1 if row is None else first[row] for row in rows]
        came = np.array(first, np.int32)
        if not self._matching.backoff:
            self._trust.observe(last.drafts.votes, came)
        ours = np.minimum(np.array(verified, np.int32), last.drafts.lengths)  # a wrapper may have drafted more
        right = np.array(accepted, np.int32)
        # The first drafted token is found right or wrong also where it was not verified: so drafts that begin to pay
        # are noticed where none is tried.
        untried = (ours == 0) & (last.drafts.lengths > 0) & (came >= 0)
        right[untried] = last.drafts.tokens[untried, 0] == came[untried]
        ours[untried] = 1
        ours[last.carried] = 0
        self._calibration.observe(last.drafts, ours, right)
        if self._settings.budget == "aimd":
            for request, drafted, good, carried in zip(last.requests, verified, accepted, last.carried, strict=True):
                self._aimd.observe(request, 0 if carried else drafted, good)

    def _count(self, rows: Sequence[Row], batch: Batch, began: float, ended: float) -> None:
        """Into the accounts. A step is timed from drafts to drafts, when it only decoded."""
        requests, drafted = len(rows), sum(batch.verified)
        right = sum(max(0, len(made) - 1) for made in batch.made)
        timed_s, plain_s, draft_s, carried, kept = 0.0, 0.0, 0.0, 0, 0
        if self._last is not None and self._last.ended_s < began and batch.decoded_only and requests:
            seconds = ended - self._last.ended_s
            self._budget.observe(requests, requests + drafted, seconds, requests + right, ended - began)
            plain_s = self._plain(requests, drafted, seconds - (ended - began)) / requests
            timed_s, draft_s = seconds / requests, (ended - began) / requests
        for row, made, verified, length in zip(rows, batch.made, batch.verified, batch.lengths, strict=True):
            account, accepted = row.account, max(0, len(made) - 1)
            if made:
                row.yields.add(len(made), length)
            account.forwards += bool(made)
            account.drafted += verified
            account.accepted += accepted
            account.timed_s += timed_s
            account.plain_s += plain_s * (1 + accepted)
            account.draft_s += draft_s
            if row.carried.tokens:
                carried += len(row.carried.tokens) - account.carried
                kept += row.carried.kept - account.kept
                account.carried, account.kept = len(row.carried.tokens), row.carried.kept
        forwards = sum(map(bool, batch.made))
        plain_s *= requests + right
        self.total += Account(
            forwards, drafted, right, timed_s * requests, plain_s, draft_s * requests, carried, kept
        )

    def _plain(self, requests: int, drafted: int, took_s: float) -> float:
        """Seconds that a step took, or had taken, without drafts: no longer than with some."""
        return min(self._budget.curve.predict(requests, requests), took_s) if drafted else took_s


def rehearse(settings: Settings) -> None:
    """Runs once all that a step runs, for what is compiled at its first call: that may take half a minute."""
    context, matching = np.arange(8, dtype=np.int32), Matching(longest=4, backoff=settings.matching == "paper")
    index, calibration, trust, budget = Index(context), Calibration(), Trust(), Budget(16)
    index.add(context, age=1)
    index.grow(64)
    one, limits, offsets = np.array([index.open()], np.int32), np.array([4], np.int32), np.array([0, 3], np.int32)
    drafts = draft([index], one, context[:3], offsets, limits, matching, calibration, trust)
    trust.observe(drafts.votes, one)
    budget.choose(drafts.survival, drafts.lengths)
    calibration.observe(drafts, drafts.lengths, drafts.lengths)
