"""The end of a step is planned while the step runs: engines with stragglers run few samples. Pure.

A step takes at least as long as its work, with all engines full, and as its longest sample alone. An engine whose
longest sample would end too late among as many samples as it has slots is *reserved*: it gets no others until so few
run there that the longest is fast enough. What reserved engines lose delays all other samples, so the time of the end
is the shortest for which both fit. The expected finish decides, not tokens: the pace is measured, drafts included.
With staleness nothing is reserved: other steps' samples fill the engines, and forecasts of stragglers are too long.
Samples move while the step runs only if their engine is slow: elsewhere their tokens are verified again.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping

from rhymed_broker.pipe.policy import Move, Paces, Running, Shift, WorkerView, load
from rhymed_broker.slices import Slices, chunks
from rhymed_broker.states import Sample

CANDIDATES = 256  # samples considered, those with the longest to go by a rough estimate
FORECASTS = 16  # in one slice: several milliseconds
WORTH = 256  # expected tokens; below, a move costs more than it saves
EARLY = 0.7  # of the time that all work takes: what a slower engine should finish within it
ROUNDS = 12  # of the bisection


def reserve(running: Running) -> Slices[Shift]:
    """Limits of the reserved engines, and the samples that leave slower ones."""
    rough = [(_rough(running, sample), sample) for sample in running.samples if sample.worker in running.workers]
    yield
    candidates: list[tuple[float, Sample]] = []
    for part in chunks(heapq.nlargest(CANDIDATES, rough, key=lambda item: item[0]), FORECASTS):
        candidates += [(running.left(sample), sample) for _, sample in part]
        yield
    if not candidates:
        return Shift([])
    work = running.queued + sum(max(0.0, running.total(sample) - sample.written) for sample in running.samples)
    engines = Engines(running.workers, running.pace)
    moves = engines.leave(candidates, work, running.verified)
    moved = {move.sample for move in moves}
    longest: dict[str, float] = {}
    for left, sample in candidates:
        if sample not in moved:
            longest[sample.worker] = max(left, longest.get(sample.worker, 0.0))
    best_s = min(running.pace(name, 1) for name in running.workers)
    end_s = best_s * max(longest.values(), default=0.0)
    limits = engines.limits(longest, work) if running.synchronous else {}
    return Shift(moves, limits, max(end_s, work / engines.rate))


def _rough(running: Running, sample: Sample) -> float:
    """Tokens left, times the engine's slowness: a sample that is longer than was expected is as long again."""
    total = running.total(sample)
    written = sample.written
    tokens = total - written if written < total / 2 else max(total / 2, written)
    return tokens * running.pace.slower(sample.worker)


def most_within(pace: Callable[[int], float], seconds: float, slots: int) -> int:
    """Samples, at least one, among which a token takes no longer."""
    low, high = 1, slots
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if pace(middle) <= seconds else (low, middle - 1)
    return low


class Engines:
    def __init__(self, workers: Mapping[str, WorkerView], pace: Paces) -> None:
        self._workers, self._pace = workers, pace
        self._full_s = {name: pace(name, worker.slots) for name, worker in workers.items()}
        self.rate = sum(worker.slots / self._full_s[name] for name, worker in workers.items())

    def limits(self, longest: Mapping[str, float], work: float) -> dict[str, int]:
        """Worker -> samples that it runs at most. `longest`: tokens left, by worker; `work`: all tokens left."""
        low = max([work / self.rate, *(left * self._pace(name, 1) for name, left in longest.items())])
        high = max([low, *(left * self._full_s[name] for name, left in longest.items())])
        best: dict[str, int] = {}
        if work > high * self.rate:
            return best
        for _ in range(ROUNDS):
            middle = (low + high) / 2
            tried = {
                name: self._most(name, middle / left)
                for name, left in longest.items()
                if left * self._full_s[name] > middle
            }
            lost = sum(
                self._workers[name].slots / self._full_s[name] - most / self._pace(name, most)
                for name, most in tried.items()
            )
            if work > middle * (self.rate - lost):
                low = middle
            else:
                high, best = middle, tried
        return best

    def _most(self, name: str, seconds: float) -> int:
        return most_within(lambda count: self._pace(name, count), seconds, self._workers[name].slots)

    def leave(self, candidates: Iterable[tuple[float, Sample]], work: float, verified: float) -> list[Move]:
        """From slow engines, the samples that end late there and sooner on a fast one: to the emptiest of these."""
        horizon = EARLY * work / self.rate
        loads = {name: load(worker) for name, worker in self._workers.items()}
        quick = [(loads[name], name) for name in self._workers if self._pace.slower(name) == 1]
        heapq.heapify(quick)
        moves = []
        for left, sample in candidates:
            here = sample.worker
            if not quick or self._pace.slower(here) == 1 or left < WORTH:
                continue
            stays_s = left * self._pace(here, max(1, loads[here]))
            busy, target = quick[0]
            leaves_s = (left + verified * sample.tokens) * self._full_s[target]
            if stays_s > horizon and leaves_s < stays_s:
                moves.append(Move(sample, target))
                heapq.heapreplace(quick, (busy + 1, target))
        return moves
