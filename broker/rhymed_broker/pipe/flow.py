"""Work-conserving: longest forecast first, taken by whoever has room, and stragglers split off and moved.

A step ends with its longest sample, so that one has to begin first; with the rest nobody idles as long as anything
waits, of this step or, as far as the staleness bound and writing ahead allow, of the next. Where no history is, a few
samples of every group go first: how long they run tells how long their siblings will.
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
from rhymed_broker.states import Sample

PROBES = 2  # samples of a group of which nothing is known; how they go tells about the others
NEAR = 0.8  # of the longest forecast: siblings on one worker are worth that
WORTH = 256  # tokens left, below which a move costs more than it brings
CANDIDATES = 256  # samples that are looked at, those that have come furthest
LIGHTER = 0.5  # of its worker's load must the other's be


def longest_first(step: int, prompts: Sequence[str], expect: Expect) -> list[str]:
    return sorted(prompts, key=lambda prompt: (-expect(prompt), prompt))


def pull(snapshot: Snapshot) -> list[Placement]:
    """Who has room takes the next; of several the least loaded takes a group, as far as shares are even."""
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
            found = _next(queue, worker, worker.slots - loads[worker.name])
            loads[worker.name] += len(found)
            placed.append(Placement(worker.name, found))
    return placed


def _next(queue: StepQueue, worker: WorkerView, room: int) -> list[Sample]:
    """Longest first; of groups that are nearly as long, siblings of what it has."""
    near = NEAR * next((queue.expected.get(prompt, 0.0) for prompt in queue.groups), 0.0)
    begun = {
        id.prompt: None
        for id in worker.held
        if id.step == queue.step and id.prompt in queue.groups and queue.expected.get(id.prompt, 0.0) >= near
    }
    return take(queue, chain(begun, (prompt for prompt in queue.groups if prompt not in begun)), room)


def _probe(queue: StepQueue, able: Sequence[WorkerView], loads: dict[str, int]) -> list[Placement]:
    """Of every group that nobody knows a few samples first, in even shares; then what is left of them."""
    samples = _probes_first(queue)
    slots = sum(worker.slots for worker in able)
    placed = []
    for worker in sorted(able, key=lambda worker: loads[worker.name] / worker.slots):
        part = math.ceil(queue.size * worker.slots / slots)
        found = list(islice(samples, min(part, worker.slots - loads[worker.name])))
        if found:
            placed.append(Placement(worker.name, found))
            loads[worker.name] += len(found)
    return placed


def _probes_first(queue: StepQueue) -> Iterator[Sample]:
    for prompt, group in queue.groups.items():
        yield from islice(group, PROBES if prompt in queue.unprobed else None)
    for prompt, group in queue.groups.items():
        if prompt in queue.unprobed:
            yield from islice(group, PROBES, None)


def split_off(running: Running) -> list[Move]:
    """The longest of what is left, from workers with much to workers with little."""
    loads = {name: load(worker) for name, worker in running.workers.items()}
    lightest = [(busy, name) for name, busy in loads.items()]
    heapq.heapify(lightest)
    most = LIGHTER * max(loads.values(), default=0)
    if not lightest or lightest[0][0] + 1 > most:
        return []
    moves: list[Move] = []
    full = [one for one in running.samples if loads.get(one.worker, 0) * LIGHTER >= lightest[0][0] + 1]
    longest = heapq.nlargest(CANDIDATES, full, key=lambda one: one.tokens)
    for left, _, sample in sorted(((running.left(one), one.id, one) for one in longest), reverse=True):
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
