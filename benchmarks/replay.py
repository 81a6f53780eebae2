"""Replays recorded responses with a drafter and verifies its drafts against the recorded tokens.

Responses run in a batch, as in an engine; when one ends the next begins. Each step drafts for all of them, accepts
the drafted tokens that agree with the record, adds one more, and passes these to the drafter, which has the history
of earlier epochs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks.traces import Response, Trace

Tokens = NDArray[np.int32]
LONGEST = 32  # tokens per draft
DEPTH = 64  # of the suffix tree


class Drafter(Protocol):
    """One per batch of responses; `build_s` and `draft_s`: seconds spent on building and drafting."""

    build_s: float
    draft_s: float

    def start(self, row: int) -> None: ...

    def propose(self, rows: Tokens, fresh: Tokens, offsets: Tokens) -> tuple[Tokens, Tokens, NDArray[np.float32]]:
        """Appends the accepted tokens and drafts for `rows`: tokens [R, K], lengths [R], survival [R, K]."""

    def observe(self, verified: Tokens, accepted: Tokens) -> None: ...

    def nbytes(self) -> int: ...


@dataclass
class Score:
    forwards: int = 0  # counted per request
    verified: int = 0
    accepted: int = 0
    generated: int = 0
    draft_s: float = 0.0
    predicted: list[NDArray[np.float32]] = field(default_factory=list)
    realised: list[NDArray[np.bool_]] = field(default_factory=list)

    @property
    def per_forward(self) -> float:
        return self.generated / max(self.forwards, 1)

    @property
    def rate(self) -> float:
        return self.accepted / max(self.verified, 1)

    @property
    def cost(self) -> float:
        """Verified tokens per generated token."""
        return self.verified / max(self.generated, 1)


def replay(
    drafter: Drafter, responses: Sequence[Response], score: Score, floor: float = 0.0, batch: int = 64
) -> None:
    """Runs all responses to the end. Drafted tokens with a survival below `floor` are not verified."""
    lengths = np.array([len(r.tokens) for r in responses], np.int32)
    text = np.full((len(responses), int(lengths.max()) + LONGEST + 1), -1, np.int32)
    for i, response in enumerate(responses):
        text[i, : lengths[i]] = response.tokens
    done = np.zeros(len(responses), np.int32)
    waiting = list(np.flatnonzero(lengths > 0))[::-1]
    rows, taken = np.zeros(0, np.int32), np.zeros(0, np.int32)
    started, columns = drafter.draft_s, np.arange(LONGEST + 1)
    while len(rows) or waiting:
        new = [waiting.pop() for _ in range(min(batch - len(rows), len(waiting)))]
        for row in new:
            drafter.start(int(row))
        rows = np.concatenate([rows, np.array(new, np.int32)])
        taken = np.concatenate([taken, np.zeros(len(new), np.int32)])
        before = (done[rows] - taken)[:, None] + columns
        fresh = text[rows[:, None], before][columns < taken[:, None]]
        offsets = np.concatenate([[0], np.cumsum(taken)]).astype(np.int32)
        tokens, drafted, survival = drafter.propose(rows, fresh, offsets)
        inside = columns[:-1] < drafted[:, None]
        verified = ((survival >= floor) & inside).cumprod(axis=1).sum(axis=1)
        right = (tokens == text[rows[:, None], done[rows, None] + columns[:-1]]) & inside
        right = right.cumprod(axis=1).astype(bool)
        accepted = np.minimum(right.sum(axis=1), verified)
        drafter.observe(verified.astype(np.int32), accepted.astype(np.int32))
        taken = np.minimum(accepted + 1, lengths[rows] - done[rows]).astype(np.int32)
        score.forwards += len(rows)
        score.verified += int(verified.sum())
        score.accepted += int(accepted.sum())
        score.generated += int(taken.sum())
        score.predicted.append(survival[inside])
        score.realised.append(right[inside])
        done[rows] += taken
        unfinished = done[rows] < lengths[rows]
        rows, taken = rows[unfinished], taken[unfinished]
    score.draft_s += drafter.draft_s - started


class IndexDrafter:
    """The history index, used as the engine's drafter uses it. Options: `back`, epochs of history; `recent`, tokens
    of other prompts' responses, 0 for none; `settings`; what was learned; those of `Index`."""

    def __init__(self, trace: Trace, responses: Sequence[Response], epoch: int, **options: Any) -> None:
        from rhymed.histospec.drafts.calibration import Calibration
        from rhymed.histospec.drafts.trust import Trust
        from rhymed.histospec.drafts.types import Matching
        from rhymed.histospec.index.index import Index
        from rhymed.histospec.index.recent import CAPACITY, Recent

        self._calibration = options.pop("calibration", None) or Calibration()
        self._trust = options.pop("trust", None) or Trust()
        self._settings = options.pop("settings", None) or Matching(longest=LONGEST, floor=0.01)
        back, capacity = options.pop("back", 1), options.pop("recent", CAPACITY)
        self.build_s = self.draft_s = 0.0
        self.built = 0
        self._indexes: dict[int, Index] = {}
        for prompt in sorted({r.prompt for r in responses}):
            past = [r for e in range(max(epoch - back, trace.epochs[0]), epoch) for r in trace.of(e, prompt)]
            start = time.perf_counter()
            index = Index(trace.prompts[prompt], expected=sum(len(r.tokens) for r in past), **options)
            for response in past:
                index.add(response.tokens, epoch - response.epoch)
            self.build_s += time.perf_counter() - start
            self.built += index.tokens
            self._indexes[prompt] = index
        self.past_bytes = self.nbytes()
        self._recent = Recent(capacity=capacity) if capacity else None
        self._keep([response for response in trace.responses if response.epoch < epoch])
        self._responses, self._of = responses, [self._indexes[r.prompt] for r in responses]
        self._row = np.full(len(responses), -1, np.int32)
        self._key = np.array([r.key or 0 for r in responses], np.uint64)
        self._keyed = np.array([r.key is not None for r in responses], bool)
        self._done = np.array([len(trace.prompts[r.prompt]) for r in responses], np.int64)
        self._rows = np.zeros(0, np.int32)
        self._drafts: Any = None

    def start(self, row: int) -> None:
        self._row[row] = self._of[row].open()

    def propose(self, rows: Tokens, fresh: Tokens, offsets: Tokens) -> tuple[Tokens, Tokens, NDArray[np.float32]]:
        from rhymed.histospec.drafts.types import Noise
        from rhymed.histospec.drafts.voting import draft

        indexes, own = [self._of[row] for row in rows], self._row[rows]
        limits = np.full(len(rows), LONGEST, np.int32)
        start = time.perf_counter()
        if self._drafts is not None and not self._settings.backoff:
            next_token = np.full(len(self._of), -1, np.int32)
            grown = offsets[1:] > offsets[:-1]
            next_token[rows[grown]] = fresh[offsets[:-1][grown]]
            self._trust.observe(self._drafts.votes, next_token[self._rows])
        self._keep([self._responses[row] for row in np.setdiff1d(self._rows, rows)])
        self._done[rows] += np.diff(offsets)
        keyed = self._keyed[rows] & (not self._settings.backoff)
        noise = Noise(self._key[rows], self._done[rows], keyed)
        self._rows = rows
        learned, recent = (self._calibration, self._trust), self._recent.index if self._recent else None
        drafts = draft(indexes, own, fresh, offsets, limits, self._settings, *learned, noise, recent)
        self.draft_s += time.perf_counter() - start
        self._drafts = drafts
        return drafts.tokens, drafts.lengths, drafts.survival

    def _keep(self, ended: Sequence[Response]) -> None:
        """For other prompts."""
        if self._recent is not None:
            for response in ended:
                self._recent.add(response.tokens)

    def observe(self, verified: Tokens, accepted: Tokens) -> None:
        self._calibration.observe(self._drafts, verified, accepted)

    def nbytes(self) -> int:
        return sum(index.nbytes for index in self._indexes.values())


class ArcticDrafter:
    """arctic-inference's suffix trees, one cache per prompt, called as vLLM's `suffix` method calls them."""

    def __init__(
        self,
        trace: Trace,
        responses: Sequence[Response],
        epoch: int,
        factor: float = 1.0,
        least: float = 0.1,
        depth: int = DEPTH,
        back: int = 1,
    ) -> None:
        from arctic_inference.suffix_decoding import SuffixDecodingCache  # type: ignore[import-not-found]

        self.build_s = self.draft_s = 0.0
        self.built = 0
        self._factor, self._least, self._depth = factor, least, depth
        self._caches: dict[int, Any] = {}
        for prompt in sorted({r.prompt for r in responses}):
            past = [r for e in range(max(epoch - back, trace.epochs[0]), epoch) for r in trace.of(e, prompt)]
            cache = SuffixDecodingCache(max_tree_depth=depth)
            start = time.perf_counter()
            for number, response in enumerate(past):
                cache.start_request(("past", number), trace.prompts[prompt])
                cache.add_active_response(("past", number), response.tokens)
                cache.stop_request(("past", number))
            self.build_s += time.perf_counter() - start
            self.built += sum(len(r.tokens) for r in past)
            self._caches[prompt] = cache
        self.past_bytes = self.nbytes()
        self._of = [self._caches[r.prompt] for r in responses]
        self._text = [trace.prompts[r.prompt] for r in responses]

    def start(self, row: int) -> None:
        self._of[row].start_request(row, self._text[row])

    def propose(self, rows: Tokens, fresh: Tokens, offsets: Tokens) -> tuple[Tokens, Tokens, NDArray[np.float32]]:
        tokens, lengths = np.full((len(rows), LONGEST), -1, np.int32), np.zeros(len(rows), np.int32)
        survival = np.zeros((len(rows), LONGEST), np.float32)
        for i, row in enumerate(rows.tolist()):
            more = fresh[offsets[i] : offsets[i + 1]]
            self._text[row] = np.concatenate([self._text[row], more])
            pattern, cache = np.ascontiguousarray(self._text[row][-self._depth :]), self._of[row]
            start = time.perf_counter()
            if len(more):
                cache.add_active_response(row, more)
            draft = cache.speculate(
                row, pattern, max_spec_tokens=LONGEST, max_spec_factor=self._factor, min_token_prob=self._least
            )
            self.draft_s += time.perf_counter() - start
            lengths[i] = len(draft.token_ids)
            tokens[i, : lengths[i]] = draft.token_ids
            survival[i, : lengths[i]] = np.cumprod(draft.probs)
        return tokens, lengths, survival

    def observe(self, verified: Tokens, accepted: Tokens) -> None:
        pass

    def nbytes(self) -> int:
        return sum(cache._global_tree.estimate_memory() for cache in self._caches.values())
