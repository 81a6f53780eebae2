"""What no schedule can beat: the run's tokens with all slots in use, and each step's longest response. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rhymed.messages import SampleId
from rhymed_broker.simulate.cluster import Cluster
from rhymed_broker.simulate.engine import PLAIN
from rhymed_broker.simulate.workload import Workload


def bound_s(workload: Workload, cluster: Cluster, tokens: int = 0) -> float:
    """A lower bound: all tokens with all slots in use, then the training of the last step.

    `tokens`: that were generated; 0: those of the plan without refills. With drafts, all slots have samples of the
    same kind: prompts with history, or without.
    """
    full_s = {seen: token_s(cluster, cluster.slots, seen=seen) / cluster.slots for seen in (False, True)}
    lengths = [0, 0]
    for id, seen in _samples(workload, range(workload.plan.steps)):
        lengths[seen] += workload.length(id)
    scale = tokens / sum(lengths) if tokens else 1.0
    work = scale * sum(lengths[seen] * full_s[seen] for seen in (False, True))
    end = _end(work, cluster)
    return max(end, workload.plan.steps * cluster.train_s) if cluster.overlap else end + cluster.train_s


def path_s(workload: Workload, cluster: Cluster, *, run_ahead: bool = False) -> float:
    """A lower bound at staleness 0: the sum over steps of generation, scoring, training and loading.

    With `overlap` training takes no time of its own where generation takes longer: all but the last group may be
    trained before. A step's generation takes no less than its longest response alone on the fastest engine, at the
    number of requests at which a sample is fastest; nor, without run-ahead, than all its tokens with all slots in
    use. With run-ahead the longest response begins with as many tokens as are kept in the mean, for nothing.
    """
    fastest = min(cluster.slow.get(number, 1.0) for number in range(cluster.workers))
    best_s = {
        seen: fastest * min(token_s(cluster, count, seen=seen) for count in range(1, cluster.slots + 1))
        for seen in (False, True)
    }
    full_s = {seen: token_s(cluster, cluster.slots, seen=seen) / cluster.slots for seen in (False, True)}
    kept = 1 / (1 - cluster.keep) if run_ahead and cluster.keep < 1 else 0.0
    total = -cluster.load_s
    for step in range(workload.plan.steps):
        lengths = [(workload.length(id), seen) for id, seen in _samples(workload, [step])]
        alone = max(max(0.0, length - kept) * best_s[seen] for length, seen in lengths)
        work = 0.0 if run_ahead else _end(sum(length * full_s[seen] for length, seen in lengths), cluster)
        generated = max(alone, work) + cluster.reward_s
        trained = max(generated, cluster.train_s) if cluster.overlap else generated + cluster.train_s
        total += trained + cluster.load_s
    return total


def token_s(cluster: Cluster, requests: int, *, seen: bool) -> float:
    """Seconds per token of one sample, among so many of its kind, on a worker at full speed."""
    drafts = cluster.drafts or PLAIN
    seen = seen and cluster.drafts is not None
    return cluster.cost(requests) * drafts.dearer(requests, requests * seen) / drafts.tokens(requests, seen=seen)


def _samples(workload: Workload, steps: Iterable[int]) -> Iterator[tuple[SampleId, bool]]:
    """With whether their prompts have history."""
    plan = workload.plan
    for step in steps:
        first = (step + 1) * plan.prompts_per_step <= plan.size
        for id in plan.samples(step):
            yield id, not first


def _end(work: float, cluster: Cluster) -> float:
    """When so many seconds of a worker at full speed are done, by all workers."""
    slow = {number: cluster.slow.get(number, 1.0) for number in range(cluster.workers)}
    now, done = 0.0, 0.0
    for at, (number, slowness) in sorted(cluster.slows.items()):
        speed = sum(1 / value for value in slow.values())
        if done + (at - now) * speed >= work:
            break
        done += (at - now) * speed
        now, slow[number] = at, slowness
    return now + (work - done) / sum(1 / value for value in slow.values())
