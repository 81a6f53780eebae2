"""Work-conserving: longest forecast first, to any worker with a free slot; stragglers move to emptier workers.

A step ends with its longest sample, so that one begins first. No worker idles while a sample waits, of this step or,
as far as staleness and run-ahead allow, of the next. Of groups without history a few samples go first: their progress
predicts the length of their siblings.

Engines with stragglers are reserved for them at the step's end (`reserve`), and samples leave slow engines (`shift`).
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice

from rhymed_broker.scheduler.fair import share
from rhymed_broker.scheduler.pace import Pace
from rhymed_broker.scheduler.policy import (
    Assignment,
    Expect,
    Move,
    Policy,
    Running,
    Shift,
    Snapshot,
    StepQueue,
    WorkerView,
    load,
    take,
)
from rhymed_broker.states import Sample

# The end of a step is planned while the step runs: engines with stragglers run few samples. Pure.
#
# A step takes at least as long as its work, with all engines full, and as its longest sample alone. An engine whose
# longest sample would end too late among as many samples as it has slots is *reserved*: it gets no others until so
# few run there that the longest is fast enough. What reserved engines lose delays all other samples, so the time of
# the end is the shortest for which both fit. The expected finish decides, not tokens: the pace is measured, drafts
# included. With staleness nothing is reserved: other steps' samples fill the engines, and forecasts of stragglers are
# too long. Samples move while the step runs only if their engine is slow: elsewhere their tokens are verified again.

ROUNDS = 12  # of the bisection


def reserve(running: Running) -> Shift:
    """Limits of the reserved engines, and the samples that leave slower ones."""
    rough = [(_rough(running, sample), sample) for sample in running.samples if sample.worker in running.workers]
    longest_first = heapq.nlargest(CANDIDATES, rough, key=lambda item: item[0])
    candidates = [(running.left(sample), sample) for _, sample in longest_first]
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
    def __init__(self, workers: Mapping[str, WorkerView], pace: Pace) -> None:
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


PROBES = 2  # samples of a group without history that go first
NEAR = 0.8  # of the longest forecast: as long as that, a sibling of what the worker has goes first
WORTH = 256  # expected tokens; below, a move costs more than it saves
CANDIDATES = 256  # samples considered, those with the most tokens
EARLY = 0.7  # of the horizon: in how much of it a slower worker should finish what it takes
LIGHTER = 0.5  # times the load of its worker, at most: the load of the target

# The policy: its order, its placement and its moves.


def longest_first(step: int, prompts: Sequence[str], expect: Expect) -> list[str]:
    return sorted(prompts, key=lambda prompt: (-expect(prompt), prompt))


def pull(snapshot: Snapshot) -> list[Assignment]:
    """A worker with a free slot takes the next samples; several workers take groups in even shares."""
    placed: list[Assignment] = []
    loads = {worker.name: load(worker) for worker in snapshot.workers}
    limits = {worker.name: snapshot.limits.get(worker.name, worker.slots) for worker in snapshot.workers}
    slower = {worker.name for worker in snapshot.workers if snapshot.pace.slower(worker.name) > 1}
    work = 0.0

    def able(queue: StepQueue, names: Collection[str]) -> list[WorkerView]:
        free = [worker for worker in snapshot.workers if loads[worker.name] < limits[worker.name]]
        return [worker for worker in free if worker.name in names and queue.fits(worker)]

    for queue in snapshot.queues:
        work += queue.work
        slow = able(queue, slower) if queue.work else []
        quick = able(queue, loads.keys() - slower if queue.work else loads)
        if queue.unprobed:
            placed += _probe(queue, quick + slow, loads, limits)
            continue
        placed += _longest(queue, quick, loads, limits)
        placed += _short(queue, slow, loads, limits, work / snapshot.rate, snapshot.pace, placed)
    for queue in snapshot.queues[:1] if slower else ():  # what would otherwise be idle
        slow = able(queue, slower) if queue.work and not queue.unprobed else []
        placed += _short(queue, slow, loads, limits, snapshot.end_s, snapshot.pace, placed)
    return placed


def _longest(
    queue: StepQueue, quick: Sequence[WorkerView], loads: dict[str, int], limits: Mapping[str, int]
) -> list[Assignment]:
    if len(quick) > 1:
        return share(queue, quick, loads, limits)
    placed = [
        Assignment(worker.name, _next(queue, worker, limits[worker.name] - loads[worker.name])) for worker in quick
    ]
    for name, taken in placed:
        loads[name] += len(taken)
    return placed


def _short(
    queue: StepQueue,
    slow: Sequence[WorkerView],
    loads: dict[str, int],
    limits: Mapping[str, int],
    horizon: float,
    pace: Pace,
    placed: Sequence[Assignment],
) -> list[Assignment]:
    """To slower workers the longest samples that they finish within the horizon, the time that all work takes."""
    if not slow:
        return []
    prompts = list(queue.groups)
    begun = {sample for placement in placed for sample in placement.samples}
    found = []
    for worker in sorted(slow, key=lambda worker: (pace(worker.name, worker.slots), worker.name)):
        tokens = EARLY * horizon / pace(worker.name, worker.slots)
        first = bisect_left(prompts, -tokens, key=lambda prompt: -queue.expected.get(prompt, math.inf))
        samples = (sample for prompt in prompts[first:] for sample in queue.groups[prompt] if sample not in begun)
        if taken := list(islice(samples, limits[worker.name] - loads[worker.name])):
            found.append(Assignment(worker.name, taken))
            loads[worker.name] += len(taken)
            begun.update(taken)
    return found


def _next(queue: StepQueue, worker: WorkerView, room: int) -> list[Sample]:
    """Longest first; of groups that are nearly as long, siblings of what the worker has."""
    near = NEAR * next((queue.expected.get(prompt, 0.0) for prompt in queue.groups), 0.0)
    begun = {
        id.prompt: None
        for id in worker.held
        if id.step == queue.step and id.prompt in queue.groups and queue.expected.get(id.prompt, 0.0) >= near
    }
    return take(queue, chain(begun, (prompt for prompt in queue.groups if prompt not in begun)), room)


def _probe(
    queue: StepQueue, able: Sequence[WorkerView], loads: dict[str, int], limits: Mapping[str, int]
) -> list[Assignment]:
    """A few samples of every group without history first, in even shares; then the rest of these groups."""
    samples = _probes_first(queue)
    slots = sum(worker.slots for worker in able)
    placed = []
    for worker in sorted(able, key=lambda worker: loads[worker.name] / worker.slots):
        part = math.ceil(queue.size * worker.slots / slots)
        taken = list(islice(samples, min(part, limits[worker.name] - loads[worker.name])))
        if taken:
            placed.append(Assignment(worker.name, taken))
            loads[worker.name] += len(taken)
    return placed


def _probes_first(queue: StepQueue) -> Iterator[Sample]:
    for prompt, group in queue.groups.items():
        yield from islice(group, PROBES if prompt in queue.unprobed else None)
    for prompt, group in queue.groups.items():
        if prompt in queue.unprobed:
            yield from islice(group, PROBES, None)


def split_off(running: Running) -> list[Move]:
    """The samples with the most tokens left, from loaded workers to emptier ones.

    A load counts as many times as its worker is slower than the fastest.
    """
    times = {name: running.pace.slower(name) for name in running.workers}
    loads = {name: load(worker) for name, worker in running.workers.items()}
    lightest = [((busy + 1) * times[name], name) for name, busy in loads.items()]
    heapq.heapify(lightest)
    most = LIGHTER * max((busy * times[name] for name, busy in loads.items()), default=0)
    if not lightest or lightest[0][0] > most:
        return []
    moves: list[Move] = []
    heavy = {name for name, busy in loads.items() if busy * times[name] * LIGHTER >= lightest[0][0]}
    full = [sample for sample in running.samples if sample.worker in heavy]
    written = heapq.nlargest(CANDIDATES, full, key=lambda sample: sample.tokens)
    candidates = [(running.left(sample), sample.id, sample) for sample in written]
    for left, _, sample in sorted(candidates, reverse=True):
        busy, target = lightest[0]
        if left < WORTH or busy > most:
            break
        source = sample.worker
        stays_s = left * running.pace(source, loads[source])
        leaves_s = (left + running.verified * sample.tokens) * running.pace(target, loads[target] + 1)
        if running.pace.known and leaves_s > stays_s:
            continue
        if busy <= LIGHTER * loads[source] * times[source] and loads[target] < running.workers[target].slots:
            moves.append(Move(sample, target))
            loads[target] += 1
            loads[source] -= 1
            heapq.heapreplace(lightest, ((loads[target] + 1) * times[target], target))
    return moves


def shift(running: Running) -> Shift:
    """While samples wait, engines are reserved for stragglers; then they spread."""
    if running.pace.known and running.workers and (running.waiting or running.ahead):
        return reserve(running)
    if running.waiting:
        return Shift([])
    return Shift(split_off(running))


FLOW = Policy(rank=longest_first, deal=None, assign=pull, move=shift)
