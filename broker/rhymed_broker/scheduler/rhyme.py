"""The two tiers of the RhymeRL paper (arXiv 2508.18588, section 4.2), as far as its text specifies them.

Between steps: prompts are ranked by their past mean length, ascending in one step, descending in the next, so that a
worker's short groups of one step are followed by its long ones. Inside a step: the ranking is cut into groups, and a
binary search gives long groups so many workers that completion time grows linearly with the rank. Outliers, in the
last tenth of the unfinished work and longer than their forecast by a factor, are moved to the least loaded worker;
they are not deferred, for that would change which samples a step trains.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from rhymed_broker.scheduler.fair import deal_evenly, fair
from rhymed_broker.scheduler.policy import Deal, Expect, Move, Policy, Running, Shift, WorkerView, load

GROUPS_A_WORKER = 0.5
LAST = 0.1  # of a step's samples: then outliers move
FLAT = 1.05  # times: closer forecasts are no ranking
GROWTH = 1.5  # times the forecast


def alternate(step: int, prompts: Sequence[str], expect: Expect) -> list[str]:
    """Short to long in even steps, long to short in odd ones."""
    return sorted(prompts, key=lambda prompt: (expect(prompt), prompt), reverse=step % 2 == 1)


def deal_by_rank(prompts: Sequence[str], workers: Sequence[WorkerView], expect: Expect) -> Deal:
    """Consecutive prompts of the ranking for each worker, or for several workers that share them."""
    if not prompts or max(map(expect, prompts)) < FLAT * min(map(expect, prompts)):
        return deal_evenly(prompts, workers, expect)  # no history yet
    count = min(len(prompts), max(1, round(GROUPS_A_WORKER * len(workers)) if len(workers) > 2 else len(workers)))
    bounds = [round(len(prompts) * group / count) for group in range(count + 1)]
    groups = [prompts[begin:end] for begin, end in pairwise(bounds)]
    rising = count < 2 or expect(groups[0][0]) <= expect(groups[-1][-1])
    ranked = groups if rising else groups[::-1]
    counts = workers_by_group([sum(map(expect, group)) for group in ranked], len(workers))
    dealt: dict[str, list[str]] = {worker.name: [] for worker in workers}
    begin = 0
    for group, many in zip(groups, counts if rising else counts[::-1], strict=True):
        for place, prompt in enumerate(group):
            dealt[workers[begin + place % many].name].append(prompt)
        begin += many
    return dealt


def workers_by_group(work: Sequence[float], workers: int) -> list[int]:
    """Workers per group, shortest group first, so that times grow linearly with the rank; at least one each.

    Binary search for the smallest slope that the workers suffice for; remaining workers go to the slowest groups.
    """

    def needed(slope: float) -> list[int]:
        return [max(1, math.ceil(tokens / (slope * (rank + 1)))) for rank, tokens in enumerate(work)]

    low, high = 1e-9, max(work) + 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if sum(needed(middle)) <= workers else (middle, high)
    counts = needed(high)
    for _ in range(workers - sum(counts)):
        slowest = max(range(len(work)), key=lambda rank: work[rank] / counts[rank] / (rank + 1))
        counts[slowest] += 1
    return counts


def outliers(running: Running) -> Shift:
    """At the end of a step, samples that exceed their forecast move to the least loaded workers."""
    if running.waiting or len(running.samples) > LAST * running.size or len(running.workers) < 2:
        return Shift([])
    loads = {name: load(worker) for name, worker in running.workers.items()}
    moves: list[Move] = []
    for sample in running.samples:
        target = min(loads, key=lambda name: loads[name])
        outgrown = sample.written > GROWTH * running.total(sample)
        if (
            outgrown
            and loads[target] + 1 < loads.get(sample.worker, 0)
            and loads[target] < running.workers[target].slots
        ):
            moves.append(Move(sample, target))
            loads[target] += 1
            loads[sample.worker] -= 1
    return Shift(moves)


RHYME = Policy(rank=alternate, deal=deal_by_rank, assign=fair, move=outliers)
