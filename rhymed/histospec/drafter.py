"""Drafts for a batch of running requests, step by step. Knows neither vLLM nor where history comes from.

After every engine step it extends the requests' sequences with the new tokens, drafts for all requests in one call,
and lets the budget decide how many drafted tokens the next step verifies. New tokens of a request are drafts for its
siblings at once. What skipped steps made is taken in before the next one (`SkipSchedule`). The builder may finish an
index at any time: the prompt's requests then move to it, and the old one is dropped. Carried tokens come first, see
`drafts.requests`.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import accumulate, chain

import numpy as np
from numpy.typing import NDArray

from rhymed.histospec.drafts.budget import Aimd, Budget
from rhymed.histospec.drafts.calibration import Calibration
from rhymed.histospec.drafts.engine import EngineDrafts
from rhymed.histospec.drafts.requests import CarriedDrafts, Request, RequestInfo, Requests
from rhymed.histospec.drafts.trust import Trust
from rhymed.histospec.drafts.types import Batch, Drafts, Matching, PreviousStep, end_at, has_one_of
from rhymed.histospec.drafts.voting import draft
from rhymed.histospec.drafts.yields import Account
from rhymed.histospec.index.builder import Builder
from rhymed.histospec.index.index import Index, extend
from rhymed.histospec.settings import Settings


class Drafter:
    """`describe` looks up a request by its id; None if the engine no longer has it, so it has ended."""

    def __init__(
        self,
        settings: Settings,
        builder: Builder,
        describe: Callable[[str], RequestInfo | None],
        *,
        width: int,
        largest: int,
        on_prompt: Callable[[RequestInfo], None] | None = None,
        on_end: Callable[[RequestInfo], None] | None = None,
    ) -> None:
        """`width`: most tokens per draft. `largest`: most tokens of a step that only decodes. `on_prompt` is called
        for every prompt that had no running request, `on_end` for every finished response."""
        self._settings = settings
        self._carrying = CarriedDrafts(builder.vocabulary)
        take = self._carrying.take
        self._requests = Requests(builder, describe, take, settings.memory_mib << 20, on_prompt, on_end)
        self.recent = self._requests.recent
        paper = settings.matching == "paper"
        self._matching = Matching(longest=width, floor=0.0 if paper else 0.02, backoff=paper)
        self._largest = largest
        self._budget, self._aimd, self._calibration, self._trust = Budget(largest), Aimd(), Calibration(), Trust()
        self._captured: list[int] = []  # tokens of the batches that have a CUDA graph
        self._previous: PreviousStep | None = None
        self._ended_s = math.inf  # time.perf_counter when the last drafts were returned; inf: the next is not timed
        self._skips, self._paused = SkipSchedule(), 0
        self._skipped = 0  # steps since drafts were last looked for that were taken in
        self.engine = EngineDrafts(settings.engine) if settings.engine else None
        self.total = Account()  # of all requests

    def step(self, batch: Batch) -> list[list[int]]:
        """Drafts for the next step, one list per request."""
        began = time.perf_counter()
        self._take_in()
        skipped, self._skipped = self._skipped, 0
        self._learn(batch, skipped)
        requests = self._requests.update(batch.ids)
        for row in batch.ended:
            self._requests.end(requests[row])
        self._paused = self._budget.paused(1 + skipped) if self._settings.budget == "rate" else 0
        drafts, carried, limits = self._draft(requests, batch)
        foreign = carried
        if self.engine is not None and batch.drafted is not None:
            foreign = carried | self.engine.add(drafts, batch.drafted, limits, paused=bool(self._paused))
        lengths = self._choose(drafts, carried)
        chosen = [drafts.tokens[row, :count].tolist() if count else [] for row, count in enumerate(lengths.tolist())]
        ended = time.perf_counter()
        self._count(requests, batch, began, ended)
        self._previous, self._ended_s = PreviousStep(batch.ids.copy(), drafts, foreign), ended
        if self._may_skip(requests):
            self._skips.drafted(self._budget.unprofitable, self._paused)
        return chosen

    def _may_skip(self, requests: Sequence[Request]) -> bool:
        """What the engine's head drafts in a step is of no use later."""
        may = self._settings.budget == "rate" and self.engine is None
        return may and not any(request.carried.tokens for request in requests)

    def skips(self, ids: list[str], new_tokens: list[list[int]]) -> bool:
        """Whether a step goes without drafts and needs no call of `step`: the schedule skips it, and it only
        decoded the requests of the one before. `ids`, `new_tokens`: as in `Batch`."""
        decoded_only = all(len(made) == 1 for made in new_tokens)
        return decoded_only and self.skips_unseen(ids, lambda: [made[0] for made in new_tokens])

    def skips_unseen(self, ids: list[str], tokens: Callable[[], list[int]]) -> bool:
        """As `skips`, of a step that made one token of each request. `tokens`: these; called when drafts are looked
        for again, where `describe` has to know them, too."""
        skips, previous = self._skips, self._previous
        if not skips.may_skip or previous is None or ids != previous.ids:
            return False
        now = time.perf_counter()
        skips.skip(now - self._ended_s if self._ended_s < now else None)
        if skips.skipped == 1:
            skips.first = tokens
        self._ended_s = now
        return True

    def captured(self, sizes: Sequence[int]) -> None:
        """Tokens of the batches that have a CUDA graph, ascending. New sizes discard the measured
        times of the engine."""
        if list(sizes) != self._captured:
            self._captured = list(sizes)
            self._budget = Budget(self._largest, captured=sizes)

    def account(self, name: str) -> Account | None:
        """What drafting did for this request; kept for a while after it has ended."""
        self._take_in()
        return self._requests.account(name)

    def take_yields(self, name: str) -> bytes | None:
        """How many tokens each of its forwards made, see `yields`. Returned once."""
        self._take_in()
        return self._requests.take_yields(name)

    def close(self) -> None:
        """Running responses count as ended."""
        self._take_in()
        self._requests.close()

    def _take_in(self) -> None:
        """Takes in what the skipped steps made."""
        skipped, took_s, typical_s = self._skips.take()
        self._skips.stop()
        requests = self._requests.batch
        if not skipped or not requests:
            return
        self._skipped += skipped
        fresh = [request.info.response[request.tokens : request.tokens + skipped] for request in requests]
        extend(
            [request.index for request in requests],
            np.array([request.row for request in requests], np.int32),
            np.fromiter(chain.from_iterable(fresh), np.int32),
            np.array([0, *accumulate(map(len, fresh))], np.int32),
        )
        share_s = took_s / len(requests)
        for request, tokens in zip(requests, fresh, strict=True):
            for length in range(request.tokens + 1, request.tokens + len(tokens) + 1):
                request.yields.add(1, length - request.info.prefix)
            request.tokens += len(tokens)
            account = request.account
            account.forwards += skipped
            account.timed_s += share_s
            account.plain_s += share_s
        self.total += Account(skipped * len(requests), timed_s=took_s, plain_s=took_s)
        if typical_s:
            self._budget.observe(len(requests), len(requests), typical_s, len(requests))

    def _draft(
        self, requests: Sequence[Request], batch: Batch
    ) -> tuple[Drafts, NDArray[np.bool_], NDArray[np.int32]]:
        """The drafts, for which requests they are carried tokens, and how long other drafts may be."""
        fresh = [
            tokens if request.tokens + len(tokens) == length else request.reopen(length)
            for request, tokens, length in zip(requests, batch.new_tokens, batch.lengths, strict=True)
        ]
        for request, tokens, length in zip(requests, fresh, batch.lengths, strict=True):
            request.tokens = length
            if request.carried.tokens:
                own = length - request.info.prefix
                self._carrying.follow(request.carried, tokens[max(0, len(tokens) - own) :], own)
        limits = np.minimum(batch.limits, self._matching.longest)
        ahead = [
            request.carried.ahead(limit) if request.carried.tokens else []
            for request, limit in zip(requests, limits.tolist(), strict=True)
        ]
        carried = np.array([bool(tokens) for tokens in ahead], bool)
        if self._paused:
            limits = np.minimum(limits, 1)  # `_learn` learns from the first drafted token
        if self._settings.budget == "aimd":
            limits = np.minimum(limits, np.array([self._aimd.limit(id) for id in batch.ids], np.int32))
        free = np.where(carried, np.int32(0), limits)
        drafts = draft(
            [request.index for request in requests],
            np.array([request.row for request in requests], np.int32),
            np.fromiter(chain.from_iterable(fresh), np.int32),
            np.array([0, *accumulate(map(len, fresh))], np.int32),
            free,
            self._matching,
            self._calibration,
            self._trust,
            None if self._matching.backoff else batch.noise,
            self.recent.index if self._settings.responses else None,
        )
        if batch.stops is not None:
            end_at(drafts, batch.stops)
        self._carrying.put(drafts, ahead)
        return drafts, carried, free

    def _choose(self, drafts: Drafts, carried: NDArray[np.bool_]) -> NDArray[np.int32]:
        if self._settings.budget != "rate":
            return drafts.lengths
        offered = np.where(carried, drafts.lengths, np.int32(0)) if self._paused else drafts.lengths
        return self._budget.choose(drafts.survival, offered)

    def _learn(self, batch: Batch, skipped: int) -> None:
        """From the new tokens and the accepted drafts. Carried tokens say nothing about other drafts. `skipped`:
        steps between these drafts and the batch's tokens."""
        previous = self._previous
        if previous is None:
            return
        accepted = [max(0, len(tokens) - 1) for tokens in batch.new_tokens]
        first = [tokens[0] if tokens else -1 for tokens in batch.new_tokens]
        verified = batch.verified
        if previous.ids != batch.ids:
            row_of = {id: row for row, id in enumerate(batch.ids)}
            rows = [row_of.get(id) for id in previous.ids]
            accepted = [0 if row is None else accepted[row] for row in rows]
            verified = [0 if row is None else verified[row] for row in rows]
            first = [-1 if row is None else first[row] for row in rows]
        if skipped:
            accepted, verified, first = [0] * len(previous.ids), [0] * len(previous.ids), self._skips.first()
        next_token = np.array(first, np.int32)
        if not self._matching.backoff:
            self._trust.observe(previous.drafts.votes, next_token)
        tried = np.minimum(np.array(verified, np.int32), previous.drafts.lengths)  # a wrapper may have drafted more
        right = np.array(accepted, np.int32)
        # Whether the first drafted token was right is known even where it was not verified. So drafts that begin to
        # pay are noticed while none is verified.
        untried = (tried == 0) & (previous.drafts.lengths > 0) & (next_token >= 0)
        right[untried] = previous.drafts.tokens[untried, 0] == next_token[untried]
        if self.engine is not None:
            self.engine.learn(tried, right, next_token)
        tried[untried] = 1
        tried[previous.foreign] = 0
        self._calibration.observe(previous.drafts, tried, right)
        if self._settings.budget == "aimd":
            for id, drafted, count, foreign in zip(previous.ids, verified, accepted, previous.foreign, strict=True):
                self._aimd.observe(id, 0 if foreign else drafted, count)

    def _count(self, running: Sequence[Request], batch: Batch, began: float, ended: float) -> None:
        """Updates the accounts. A step is timed from one call to the next, unless the engine may have been idle."""
        requests, drafted = len(running), sum(batch.verified)
        right = sum(max(0, len(tokens) - 1) for tokens in batch.new_tokens)
        timed_s, plain_s, more_s, draft_s, carried, kept = 0.0, 0.0, 0.0, 0.0, 0, 0
        if self._ended_s < began and requests and (batch.decoded_only or has_one_of(self._previous, batch.ids)):
            timed_s, draft_s = (ended - self._ended_s) / requests, (ended - began) / requests
            took_s = began - self._ended_s
            plain = self._budget.curve.undrafted(requests, drafted, took_s, batch.decoded_only)
            plain_s, more_s = (seconds / requests for seconds in plain)
            if batch.decoded_only:
                self._observe(requests, drafted, right, took_s + ended - began, ended - began)
        for request, tokens, verified, length in zip(
            running, batch.new_tokens, batch.verified, batch.lengths, strict=True
        ):
            account, accepted = request.account, max(0, len(tokens) - 1)
            if tokens:
                request.yields.add(len(tokens), length - request.info.prefix)
            account.forwards += bool(tokens)
            account.drafted += verified
            account.accepted += accepted
            account.timed_s += timed_s
            account.plain_s += plain_s + more_s * accepted
            account.draft_s += draft_s
            if request.carried.tokens:
                carried += len(request.carried.tokens) - account.carried
                kept += request.carried.kept - account.kept
                account.carried, account.kept = len(request.carried.tokens), request.carried.kept
        forwards, plain_s = sum(map(bool, batch.new_tokens)), plain_s * requests + more_s * right
        self.total += Account(
            forwards, drafted, right, timed_s * requests, plain_s, draft_s * requests, carried, kept
        )

    def _observe(self, requests: int, drafted: int, right: int, seconds: float, draft_s: float) -> None:
        """A step that only decoded took so long, `draft_s` of it for drafts."""
        self._budget.observe(requests, requests + drafted, seconds, requests + right, draft_s)


def warm_up(settings: Settings) -> None:
    """Calls everything that a step calls, since first calls compile. May take half a minute."""
    context, matching = np.arange(8, dtype=np.int32), Matching(longest=4, backoff=settings.matching == "paper")
    index, calibration, trust, budget = Index(context), Calibration(), Trust(), Budget(16)
    index.add(context, age=1)
    index.grow(64)
    row, limits, offsets = np.array([index.open()], np.int32), np.array([4], np.int32), np.array([0, 3], np.int32)
    drafts = draft([index], row, context[:3], offsets, limits, matching, calibration, trust, recent=index)
    trust.observe(drafts.votes, row)
    budget.choose(drafts.survival, drafts.lengths)
    budget.curve.observe(1, 1, 1.0)
    calibration.observe(drafts, drafts.lengths, drafts.lengths)
    if settings.engine:
        engine = EngineDrafts(settings.engine)
        engine.add(drafts, np.zeros((1, settings.engine), np.int32), limits)
        engine.learn(np.ones(1, np.int32), np.ones(1, np.int32), row)


# Which steps the drafter skips: it does not look for drafts. Pure: times come in.
#
# Looking costs half a millisecond and more, in steps that may take ten. While drafting pauses, and where nothing was
# worth verifying for many steps in a row, most steps are skipped; what they made is taken in by the next that is not.


class SkipSchedule:
    LONGEST = 15  # steps that are skipped in a row
    AFTER = 8  # times in a row that nothing paid, for each step that is skipped in a row

    def __init__(self) -> None:
        self.skipped = 0  # steps since drafts were last looked for
        self.first: Callable[[], list[int]] = list  # tokens that the first of them made, one per request
        self._left = self._unprofitable = 0
        self._seconds: list[float] = []  # of the measured ones

    @property
    def may_skip(self) -> bool:
        """Whether the next step may be skipped."""
        return self._left > 0

    def drafted(self, unprofitable: bool, pause: int = 0) -> None:
        """After drafts were looked for. `unprofitable`: none was worth verifying. `pause`: steps of a pause."""
        self._unprofitable = self._unprofitable + 1 if unprofitable else 0
        self._left = min(self.LONGEST, pause or self._unprofitable // self.AFTER)

    def stop(self) -> None:
        """Drafts are looked for in the next step."""
        self._left = 0

    def skip(self, seconds: float | None) -> None:
        """A step that verified nothing. `seconds`: None if it was not measured."""
        self._left -= 1
        self.skipped += 1
        if seconds is not None:
            self._seconds.append(seconds)

    def take(self) -> tuple[int, float, float]:
        """(steps that were skipped, seconds of all that were measured, of the middle one; 0: none)."""
        skipped, seconds = self.skipped, self._seconds
        self.skipped, self._seconds = 0, []
        return skipped, sum(seconds), statistics.median(seconds) if seconds else 0.0
