"""Work-conserving: longest forecast first, to any worker with a free slot; stragglers move to emptier workers.

A step ends with its longest sample, so that one begins first. No worker idles while a sample waits, of this step or,
as far as staleness and run-ahead allow, of the next. Of groups without history a few samples go first: their progress
predicts the length of their siblings.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from itertools import chain, islice

from rhymed_broker.pipe.fair import share
from rhymed_broker.pipe.policy import (
    Expect,
    Move,
    Placement,
    Policy,
    Running,
    Snapshot,
    StepQueue,
    WorkerView,
    load,
    take,
)
from rhymed_broker.slices import Slices, chunks
from rhymed_broker.states import Sample

PROBES = 2  # samples of a group without history that go first
NEAR = 0.8  # of the longest forecast: as long as that, a sibling of what the worker has goes first
WORTH = 256  # expected tokens; below, a move costs more than it saves
CANDIDATES = 256  # samples considered, those with the most tokens
FORECASTS = 16  # in one slice: several milliseconds
LIGHTER = 0.5  # times the load of its worker, at most: the load of the target


def longest_first(step: int, prompts: Sequence[str], expect: Expect) -> list[str]:
    return sorted(prompts, key=lambda prompt: (-expect(prompt), prompt))


def pull(snapshot: Snapshot) -> list[Placement]:
    """A worker with a free slot takes the next samples; several workers take groups in even shares."""
    placed: list[Placement] = []
    loads = {worker.name: load(worker) for worker in snapshot.workers}
    for queue in snapshot.queues:
        able = [worker for worker in snapshot.workers if loads[worker.name] < worker.slots and queue.fits(worker)]
        if not able:
            continue
        if queue.unprobed:
            placed += _probe(queue, able, loads)
        elif len(able) > 1:
            placed += share(queue, able, loads)
        else:
            (worker,) = able
            taken = _next(queue, worker, worker.slots - loads[worker.name])
            loads[worker.name] += len(taken)
            placed.append(Placement(worker.name, taken))
    return placed


def _next(queue: StepQueue, worker: WorkerView, room: int) -> list[Sample]:
    """Longest first; of groups that are nearly as long, siblings of what the worker has."""
    near = NEAR * next((queue.expected.get(prompt, 0.0) for prompt in queue.groups), 0.0)
    begun = {
        id.prompt: None
        for id in worker.held
        if id.step == queue.step and id.prompt in queue.groups and queue.expected.get(id.prompt, 0.0) >= near
    }
    return take(queue, chain(begun, (prompt for prompt in queue.groups if prompt not in begun)), room)


def _probe(queue: StepQueue, able: Sequence[WorkerView], loads: dict[str, int]) -> list[Placement]:
    """A few samples of every group without history first, in even shares; then the rest of these groups."""
    samples = _probes_first(queue)
    slots = sum(worker.slots for worker in able)
    placed = []
    for worker in sorted(able, key=lambda worker: loads[worker.name] / worker.slots):
        part = math.ceil(queue.size * worker.slots / slots)
        taken = list(islice(samples, min(part, worker.slots - loads[worker.name])))
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
    """The samples with the most tokens left, from loaded workers to emptier ones."""
    loads = {name: load(worker) for name, worker in running.workers.items()}
    lightest = [(busy, name) for name, busy in loads.items()]
    heapq.heapify(lightest)
    most = LIGHTER * max(loads.values(), default=0)
    if not lightest or lightest[0][0] + 1 > most:
        return []
    moves: list[Move] = []
    full = [sample for sample in running.samples if loads.get(sample.worker, 0) * LIGHTER >= lightest[0][0] + 1]
    candidates = []
    for samples in chunks(heapq.nlargest(CANDIDATES, full, key=lambda sample: sample.tokens), FORECASTS):
        yield
        candidates += [(running.left(sample), sample.id, sample) for sample in samples]
    for left, _, sample in sorted(candidates, reverse=True):
        busy, target = lightest[0]
        if left < WORTH or busy + 1 > most:
            break
        if busy + 1 <= LIGHTER * loads.get(sample.worker, 0) and busy < running.workers[target].slots:
            moves.append(Move(sample, target))
            heapq.heapreplace(lightest, (busy + 1, target))
            loads[target] += 1
            loads[sample.worker] -= 1
    return moves


FLOW = Policy(rank=longest_first, deal=None, place=pull, move=split_off)
