"""An engine in virtual time: each step adds one token to every running sample, and its duration is a cost curve.

With drafts a step adds more than one. A clock counts tokens: one for samples whose prompts have history, one for the
others. A sample that enters at clock c and needs n tokens leaves at c + n whatever else happens, so a heap of leaving
times for each clock is all the state; the number of running samples only changes the clocks' speeds.
"""

from __future__ import annotations

import heapq
import json
import math
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from rhymed.core.errors import DataError
from rhymed.core.messages import SampleId

# Drafts from history in a simulated engine: tokens per forward, and what their verification costs. Pure.
#
# A forward of an engine that drafts yields several tokens of a sample whose prompt has responses of an earlier step,
# few of one whose prompt has none but its siblings, and takes longer than a plain one, by the drafts that it
# verifies. All three depend on the number of requests: a drafter with a budget verifies fewer tokens for each of many
# requests. Not modelled: that some responses agree with their history less than others.

Points = list[tuple[float, float]]

# `rhymed bench spec`, bench policy on a CPU, its second epoch: 1, 4, 16 and 64 requests.
TOKENS: Points = [(1, 3.6), (4, 4.1), (16, 3.9), (64, 4.1)]
SPEEDS: Points = [(1, 3.23), (4, 2.77), (16, 2.22), (64, 1.76)]  # over plain decoding
FIRST = 1.15  # tokens per forward in the first epoch: between 1.05 and 1.3


class Drafts:
    def __init__(self, tokens: Points, dearer: Points | None = None, first: float = FIRST) -> None:
        """`tokens`: (requests, tokens per forward of a request with history); `first`: of one without.

        `dearer`: (requests, time of a forward that verifies all these drafts, relative to a plain one); None: 1.
        Straight lines between the points, constant beyond them. Raises `DataError`.
        """
        dearer = dearer or [(1, 1.0)]
        if not tokens or first < 1 or min(value for _, value in [*tokens, *dearer]) < 1:
            raise DataError("drafts: a forward yields at least one token and is no faster than a plain one")
        self._tokens, self._dearer, self._first = sorted(tokens), sorted(dearer), first
        self._table: list[tuple[float, float]] = []

    def tokens(self, requests: int, *, seen: bool) -> float:
        """Per forward, of one request. `seen`: its prompt has responses of an earlier step."""
        return self._at(requests)[0] if seen else self._first

    def dearer(self, requests: int, seen: int) -> float:
        """Time of a forward relative to a plain one, if `seen` of the requests have history."""
        return 1.0 + (self._at(requests)[1] - 1.0) * seen / requests if requests else 1.0

    def _at(self, requests: int) -> tuple[float, float]:
        while len(self._table) <= requests:
            count = len(self._table)
            self._table.append((_between(self._tokens, count), _between(self._dearer, count)))
        return self._table[requests]


def _between(points: Points, at: float) -> float:
    if at <= points[0][0]:
        return points[0][1]
    for (x0, y0), (x1, y1) in pairwise(points):
        if at <= x1:
            return y0 + (y1 - y0) * (at - x0) / (x1 - x0)
    return points[-1][1]


def _on_cpu() -> Drafts:
    dearer = [(requests, tokens / speed) for (requests, tokens), (_, speed) in zip(TOKENS, SPEEDS, strict=True)]
    return Drafts(TOKENS, dearer)


NAMED = {"free": lambda: Drafts(TOKENS), "cpu": _on_cpu}
"""As measured: where verified tokens cost nothing, as while decoding is bound by memory; and at a CPU's cost."""


def read(name: str) -> Drafts:
    """A name of `NAMED`, or a JSON file {"tokens": [[requests, tokens], ...], "dearer": [...], "first": 1.15}.

    Raises `DataError`.
    """
    if name in NAMED:
        return NAMED[name]()
    try:
        tree = json.loads(Path(name).read_bytes())
        return Drafts(_points(tree["tokens"]), _points(tree.get("dearer", [])), float(tree.get("first", FIRST)))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DataError(
            f'{name}: neither one of {", ".join(NAMED)} nor {{"tokens": [[requests, tokens]]}}: {error}'
        ) from None


def _points(rows: Iterable[tuple[float, float]]) -> Points:
    return [(float(requests), float(value)) for requests, value in rows]


PLAIN = Drafts([(1, 1.0)], first=1.0)


class Cost:
    """Seconds of an engine step by the number of samples that it decodes: straight lines between measured points."""

    def __init__(self, points: list[tuple[float, float]]) -> None:
        """`points`: (samples, seconds), increasing. Beyond the last one the curve continues straight."""
        self._table: list[float] = []
        self._points = sorted(points)
        if not points or min(seconds for _, seconds in points) <= 0:
            raise DataError("a cost curve needs at least one point, of more than 0 seconds")

    @classmethod
    def line(cls, step_s: float, sample_s: float) -> Cost:
        return cls([(0.0, step_s), (1.0, step_s + sample_s)])

    @classmethod
    def read(cls, path: Path) -> Cost:
        """JSON: [[samples, seconds], ...]. Raises `DataError`."""
        try:
            return cls([(float(samples), float(seconds)) for samples, seconds in json.loads(path.read_bytes())])
        except (OSError, ValueError, TypeError) as error:
            raise DataError(f"{path}: not a cost curve [[samples, seconds], ...]: {error}") from None

    def __call__(self, samples: int) -> float:
        while len(self._table) <= samples:
            self._table.append(self._at(len(self._table)))
        return self._table[samples]

    def _at(self, samples: int) -> float:
        points = self._points
        place = min(max(1, bisect_left(points, (samples, 0.0))), len(points) - 1)
        if place == 0:
            return points[0][1]
        (x0, y0), (x1, y1) = points[place - 1], points[place]
        return y0 + (y1 - y0) * (samples - x0) / (x1 - x0)


@dataclass(eq=False)
class Entry:
    """A sample in an engine."""

    id: SampleId
    length: int  # response tokens
    begun: int = 0  # tokens that it enters with, verified first
    checked: float = 0.0  # engine steps for their verification
    version: int = 0  # of its oldest token
    start: float = math.inf  # on its clock, when it got a slot
    seen: bool = False  # its prompt has history


class Engine:
    def __init__(self, slots: int, cost: Cost, slowness: float = 1.0, drafts: Drafts = PLAIN) -> None:
        self.slots, self.slowness, self._cost, self._drafts = slots, slowness, cost, drafts
        self.running: dict[SampleId, Entry] = {}
        self.waiting: deque[Entry] = deque()
        self.busy_s = 0.0  # slots times seconds
        self.idle_s = 0.0  # seconds without a sample
        self._clocks = [0.0, 0.0]  # tokens: without and with history
        self._leaving: tuple[list[tuple[float, int, Entry]], ...] = ([], [])  # by clock
        self._seen = 0  # of those that run
        self._at = 0.0  # time of the clocks
        self._count = 0

    def advance(self, now: float) -> None:
        passed = now - self._at
        if passed > 0:
            running = len(self.running)
            if running:
                for seen in (False, True):
                    self._clocks[seen] += passed / self._token_s(running, seen=seen)
                self.busy_s += passed * running
            else:
                self.idle_s += passed
        self._at = max(self._at, now)

    def pause(self, until: float) -> None:
        """Nothing runs until then, while weights load; call `advance` to now first."""
        self._at = until

    def add(self, entry: Entry) -> None:
        self.waiting.append(entry)
        self._fill()

    def remove(self, id: SampleId) -> Entry | None:
        """Running or waiting; None: it is not here."""
        entry = self.running.pop(id, None)
        if entry is None:
            entry = next((waiting for waiting in self.waiting if waiting.id == id), None)
            if entry is not None:
                self.waiting.remove(entry)
        else:
            self._seen -= entry.seen
            self._fill()
        return entry

    def finished(self) -> list[Entry]:
        """Samples that leave now; waiting ones take their slots."""
        done = []
        for leaving, clock in zip(self._leaving, self._clocks, strict=True):
            while leaving and leaving[0][0] <= clock + 1e-6:
                _, _, entry = heapq.heappop(leaving)
                if self.running.get(entry.id) is entry:
                    del self.running[entry.id]
                    self._seen -= entry.seen
                    done.append(entry)
        if done:
            self._fill()
        return done

    def tokens(self, entry: Entry) -> int:
        """That it has so far."""
        passed = self._clocks[entry.seen] - entry.start - self._checks(entry)
        return min(entry.length, entry.begun + math.floor(max(0.0, passed + 1e-6)))

    def next_s(self) -> float | None:
        """When the next sample leaves, if nothing else happens."""
        due = []
        for seen, leaving in zip((False, True), self._leaving, strict=True):
            while leaving and self.running.get(leaving[0][2].id) is not leaving[0][2]:
                heapq.heappop(leaving)
            if leaving:
                tokens = max(0.0, leaving[0][0] - self._clocks[seen])
                due.append(self._at + tokens * self._token_s(len(self.running), seen=seen))
        return min(due, default=None)

    def _token_s(self, running: int, *, seen: bool) -> float:
        """Seconds per token of a sample."""
        forward_s = self._cost(running) * self.slowness * self._drafts.dearer(running, self._seen)
        return forward_s / self._drafts.tokens(running, seen=seen)

    def _checks(self, entry: Entry) -> float:
        """The time of its verification, on its clock."""
        return entry.checked * self._drafts.tokens(self.slots, seen=entry.seen)

    def _fill(self) -> None:
        while self.waiting and len(self.running) < self.slots:
            entry = self.waiting.popleft()
            entry.start = self._clocks[entry.seen]
            self.running[entry.id] = entry
            self._seen += entry.seen
            self._count += 1
            leaves = entry.start + (self._checks(entry) + entry.length - entry.begun)
            heapq.heappush(self._leaving[entry.seen], (leaves, self._count, entry))
