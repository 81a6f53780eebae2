"""Drafts for a batch of running requests, step by step. Knows neither vLLM nor where history comes from.

After every engine step it extends the requests' sequences with the new tokens, drafts for all requests in one call,
and lets the budget decide how many drafted tokens the next step verifies. New tokens of a request are drafts for its
siblings at once. Steps that `doze` lets pass are taken in before the next one. The builder may finish an index at any
time: the prompt's requests then move to it, and the old one is dropped. Carried tokens come first, see `carried`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from itertools import accumulate, chain

import numpy as np
from numpy.typing import NDArray

from rhymed.histospec.doze import Doze
from rhymed.histospec.drafts.budget import Aimd, Budget
from rhymed.histospec.drafts.calibration import Calibration
from rhymed.histospec.drafts.carried import CarriedDrafts
from rhymed.histospec.drafts.requests import Request, RequestInfo, Requests
from rhymed.histospec.drafts.stats import Account
from rhymed.histospec.drafts.trust import Trust
from rhymed.histospec.drafts.types import Batch, Drafts, Matching, PreviousStep, end_at, has_one_of
from rhymed.histospec.drafts.voting import draft
from rhymed.histospec.heads.beside import Beside, Counts, Source
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
        """`width`: most tokens per draft. `largest`: most tokens per engine step. `on_prompt` is called for every
        prompt that had no running request, `on_end` for every finished response."""
        self._settings = settings
        self._carrying = CarriedDrafts(builder.vocabulary)
        take = self._carrying.take
        self._requests = Requests(builder, describe, take, settings.memory_mib << 20, on_prompt, on_end)
        self.recent = self._requests.recent
        paper = settings.matching == "paper"
        self._matching = Matching(longest=width, floor=0.0 if paper else 0.02, backoff=paper)
        self._largest = largest
        self._budget, self._aimd, self._calibration, self._trust = Budget(largest), Aimd(), Calibration(), Trust()
        self._previous: PreviousStep | None = None
        self._ended_s = math.inf  # time.perf_counter when the last drafts were returned; inf: the next is not timed
        self._doze, self._resting = Doze(), 0
        self._passed = 0  # steps since the last look that were taken in
        self._beside: Beside | None = None
        self.total = Account()  # of all requests

    def step(self, batch: Batch) -> list[list[int]]:
        """Drafts for the next step, one list per request."""
        began = time.perf_counter()
        self._take_in()
        passed, self._passed = self._passed, 0
        self._learn(batch, passed)
        requests = self._requests.update(batch.ids)
        for row in batch.ended:
            self._requests.end(requests[row])
        self._resting = self._budget.resting(1 + passed) if self._settings.budget == "rate" else 0
        drafts, carried, limits = self._draft(requests, batch)
        foreign = carried
        if self._beside is not None:
            foreign = carried | self._beside.add(drafts, limits * (not self._resting), self._budget)
        lengths = self._choose(drafts, carried)
        chosen = [drafts.tokens[row, :count].tolist() if count else [] for row, count in enumerate(lengths.tolist())]
        ended = time.perf_counter()
        self._count(requests, batch, began, ended)
        self._previous, self._ended_s = PreviousStep(batch.ids.copy(), drafts, foreign), ended
        if self._may_doze(requests):
            self._doze.look(self._budget.barren, self._resting)
        return chosen

    def _may_doze(self, requests: Sequence[Request]) -> bool:
        """A head has to see every step."""
        dozes = self._settings.budget == "rate" and self._beside is None
        return dozes and not any(request.carried.tokens for request in requests)

    def beside(self, head: Source | None) -> None:
        """From now on this head drafts where history has nothing better; None: history alone."""
        self._beside = None if head is None or self._settings.budget != "rate" else Beside(head)

    def head_counts(self) -> Counts | None:
        return None if self._beside is None else self._beside.counts

    def passes(self, ids: list[str], new_tokens: list[list[int]]) -> bool:
        """Whether a step goes without drafts and needs no call of `step`: the drafter dozes, and the step did nothing
        but decode the requests of the one before. `ids`, `new_tokens`: as in `Batch`."""
        doze, previous = self._doze, self._previous
        if not doze.asleep or previous is None or ids != previous.ids or any(len(made) != 1 for made in new_tokens):
            return False
        now = time.perf_counter()
        doze.let_pass(now - self._ended_s if self._ended_s < now else None)
        if doze.passed == 1:
            doze.first = [made[0] for made in new_tokens]
        self._ended_s = now
        return True

    def captured(self, sizes: Sequence[int]) -> None:
        """Tokens of the batches that have a CUDA graph, ascending. Call it before the first step."""
        self._budget = Budget(self._largest, captured=sizes)

    def interrupted(self) -> None:
        """The engine was stopped since the previous step, so the time until the next one is not measured. Not needed
        after an idle engine or loaded weights: the next step then mostly prefills, and is not timed."""
        self._ended_s = math.inf

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
        """Takes in what the steps made that have passed since the last look."""
        passed, took_s, typical_s = self._doze.take()
        self._doze.wake()
        requests = self._requests.batch
        if not passed or not requests:
            return
        self._passed += passed
        fresh = [request.info.response[request.tokens : request.tokens + passed] for request in requests]
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
            account.forwards += passed
            account.timed_s += share_s
            account.plain_s += share_s
        self.total += Account(passed * len(requests), timed_s=took_s, plain_s=took_s)
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
        if self._resting:
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
        offered = np.where(carried, drafts.lengths, np.int32(0)) if self._resting else drafts.lengths
        return self._budget.choose(drafts.survival, offered)

    def _learn(self, batch: Batch, passed: int) -> None:
        """From the new tokens and the accepted drafts. Carried tokens say nothing about other drafts. `passed`: steps
        between these drafts and the batch's tokens."""
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
        if passed:
            accepted, verified, first = [0] * len(previous.ids), [0] * len(previous.ids), self._doze.first
        next_token = np.array(first, np.int32)
        if not self._matching.backoff:
            self._trust.observe(previous.drafts.votes, next_token)
        tried = np.minimum(np.array(verified, np.int32), previous.drafts.lengths)  # a wrapper may have drafted more
        right = np.array(accepted, np.int32)
        # Whether the first drafted token was right is known even where it was not verified. So drafts that begin to
        # pay are noticed while none is verified.
        untried = (tried == 0) & (previous.drafts.lengths > 0) & (next_token >= 0)
        right[untried] = previous.drafts.tokens[untried, 0] == next_token[untried]
        if self._beside is not None:
            self._beside.learn(tried, right, next_token)
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
        head_s = self._beside.seconds if self._beside is not None else 0.0
        self._budget.observe(requests, requests + drafted, seconds, requests + right, draft_s, head_s)
        if self._beside is not None:
            self._beside.timed(requests + right, seconds - head_s, bool(drafted))


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
