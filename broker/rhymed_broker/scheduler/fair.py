"""Even shares without a forecast: `FAIR` for scoring; `FIFO`, an equal part per worker, as other systems do."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence

from rhymed_broker.scheduler.policy import (
    Assignment,
    Deal,
    Expect,
    Policy,
    Snapshot,
    StepQueue,
    WorkerView,
    as_given,
    load,
    stay,
    take,
)


def fair(snapshot: Snapshot) -> list[Assignment]:
    """Queue after queue: dealt prompts go to their worker, others to the least loaded one, up to its even share.

    A group stays on one worker up to that share, since siblings share a prefix and draft for each other; no worker
    idles for it.
    """
    loads = {worker.name: load(worker) for worker in snapshot.workers}
    placed: list[Assignment] = []
    for queue in snapshot.queues:
        able = [worker for worker in snapshot.workers if queue.fits(worker) and loads[worker.name] < worker.slots]
        if able:
            placed += share(queue, able, loads) if queue.deal is None else _own(queue, queue.deal, able, loads)
    return placed


def _own(queue: StepQueue, deal: Deal, able: Sequence[WorkerView], loads: dict[str, int]) -> list[Assignment]:
    placed = []
    for worker in able:
        if taken := take(queue, deal.get(worker.name, ()), worker.slots - loads[worker.name]):
            placed.append(Assignment(worker.name, taken))
            loads[worker.name] += len(taken)
    return placed


def share(
    queue: StepQueue, able: Sequence[WorkerView], loads: dict[str, int], limits: Mapping[str, int] | None = None
) -> list[Assignment]:
    """The groups in order, each to the least loaded worker. Updates `loads`: worker -> slots in use.

    `limits`: worker -> slots that it may use; None: all.
    """
    limits = limits or {worker.name: worker.slots for worker in able}
    part = (queue.size + sum(loads[worker.name] for worker in able)) / sum(worker.slots for worker in able)
    heap = [(loads[worker.name] / worker.slots, order, worker) for order, worker in enumerate(able)]
    heapq.heapify(heap)
    placed: list[Assignment] = []
    for group in queue.groups.values():
        left = list(group)
        while left and heap:
            _, order, worker = heapq.heappop(heap)
            busy = loads[worker.name]
            even = math.ceil(part * worker.slots - 1e-9)  # its share, in samples
            take = min(len(left), max(1, min(limits[worker.name], even) - busy))
            placed.append(Assignment(worker.name, left[:take]))
            del left[:take]
            loads[worker.name] = busy = busy + take
            if busy < limits[worker.name]:
                heapq.heappush(heap, (busy / worker.slots, order, worker))
        if not heap:
            break
    return placed


def deal_evenly(prompts: Sequence[str], workers: Sequence[WorkerView], expect: Expect) -> Deal:
    """Prompts in order, in proportion to the workers' slots."""
    slots = sum(worker.slots for worker in workers)
    dealt: dict[str, Sequence[str]] = {}
    begin, passed = 0, 0
    for worker in workers:
        passed += worker.slots
        end = round(len(prompts) * passed / slots)
        dealt[worker.name] = prompts[begin:end]
        begin = end
    return dealt


FAIR = Policy(rank=as_given, deal=None, assign=fair, move=stay)
FIFO = Policy(rank=as_given, deal=deal_evenly, assign=fair, move=stay)
