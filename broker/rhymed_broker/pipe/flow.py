"""Work-conserving: longest forecast first, to any worker with a free slot; stragglers move to emptier workers.

A step ends with its longest sample, so that one begins first. No worker idles while a sample waits, of this step or,
as far as staleness and run-ahead allow, of the next. Of groups without history a few samples go first: their progress
predicts the length of their siblings.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain, islice

from rhymed_broker.pipe.fair import share
from rhymed_broker.pipe.policy import (
    Expect,
    Move,
    Paces,
    Placement,
    Policy,
    Running,
    Shift,
    Snapshot,
    StepQueue,
    WorkerView,
    load,
    take,
)
from rhymed_broker.pipe.tail import reserve
from rhymed_broker.slices import Slices, chunks
from rhymed_broker.states import Sample

PROBES = 2  # samples of a group without history that go first
NEAR = 0.8  # of the longest forecast: as long as that, a sibling of what the worker has goes first
WORTH = 256  # expected tokens; below, a move costs more than it saves
CANDIDATES = 256  # samples considered, those with the most tokens
FORECASTS = 16  # in one slice: several milliseconds
EARLY = 0.7  # of the horizon: in how much of it a slower worker should finish what it takes
LIGHTER = 0.5  # times the load of its worker, at most: the load of the target


def longest_first(step: int, prompts: Sequence[str], expect: Expect) -> list[str]:
    return sorted(prompts, key=lambda prompt: (-expect(prompt), prompt))


def pull(snapshot: Snapshot) -> list[Placement]:
    """A worker with a free slot takes the next samples; several workers take groups in even shares."""
    placed: list[Placement] = []
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
) -> list[Placement]:
    if len(quick) > 1:
        return share(queue, quick, loads, limits)
    placed = [
        Placement(worker.name, _next(queue, worker, limits[worker.name] - loads[worker.name])) for worker in quick
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
    pace: Paces,
    placed: Sequence[Placement],
) -> list[Placement]:
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
            found.append(Placement(worker.name, taken))
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
) -> list[Placement]:
    """A few samples of every group without history first, in even shares; then the rest of these groups."""
    samples = _probes_first(queue)
    slots = sum(worker.slots for worker in able)
    placed = []
    for worker in sorted(able, key=lambda worker: loads[worker.name] / worker.slots):
        part = math.ceil(queue.size * worker.slots / slots)
        taken = list(islice(samples, min(part, limits[worker.name] - loads[worker.name])))
        if taken:
            placed.append(Placement(worker.name, taken))
            loads[worker.name] += len(taken)
    return placed


def _probes_first(queue: StepQueue) -> Iterator[Sample]:
    for prompt, group in queue.groups.items():
        yield from islice(group, PROBES if prompt in queue.unprobed else None)
    for prompt, group in queue.groups.items():
        if prompt in queue.unprobed:
            yield from islice(group, PROBES, None)


def split_off(running: Running) -> Slices[list[Move]]:
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
    candidates = []
    for samples in chunks(heapq.nlargest(CANDIDATES, full, key=lambda sample: sample.tokens), FORECASTS):
        yield
        candidates += [(running.left(sample), sample.id, sample) for sample in samples]
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


def shift(running: Running) -> Slices[Shift]:
    """While samples wait, engines are reserved for stragglers; then they spread."""
    if running.pace.known and running.workers and (running.waiting or running.ahead):
        reserved = yield from reserve(running)
        return reserved
    if running.waiting:
        return Shift([])
    moves = yield from split_off(running)
    return Shift(moves)


FLOW = Policy(rank=longest_first, deal=None, place=pull, move=shift)
