"""What a simulated run is given, and what it measures."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from rhymed.core.messages import Drafting, SampleId
from rhymed_broker.simulate.engine import PLAIN, Cost, Drafts, Entry
from rhymed_broker.simulate.workload import Workload
from rhymed_broker.states import Rules


@dataclass(frozen=True)
class Cluster:
    workers: int = 32
    slots: int = 64  # samples that a worker decodes at the same time
    cost: Cost = field(default_factory=lambda: Cost.line(0.010, 0.0001))
    train_s: float = 0.0  # per step
    overlap: bool = False  # the trainer begins with complete groups while others are generated
    reward_s: float = 0.5
    load_s: float = 1.0  # new weights into an engine
    verify: float = 0.1  # engine steps per token that is verified instead of generated
    keep: float = 0.9987  # probability that a token written ahead is the same with the next weights
    slow: dict[int, float] = field(default_factory=dict)  # worker -> times slower
    drafts: Drafts | None = None
    failures: dict[float, int] = field(default_factory=dict)  # time -> worker that dies, and is back after `back_s`
    back_s: float = 60.0
    beat_s: float = 5.0
    flat: float = 0.0  # share of groups without signal, which other prompts replace; 0: no dynamic sampling
    seed: int = 0

    def rules(self, max_staleness: int, run_ahead: int) -> Rules:
        return Rules(
            max_staleness,
            run_ahead,
            lost_after_s=4 * self.beat_s,
            missing_after_s=math.inf,
            overlap=self.overlap,
        )

    def reward(self, id: SampleId) -> float:
        """Of the samples of a group all the same, or all different."""
        if not self.flat:
            return 0.0
        return float(id.index) if random.Random(f"{self.seed}/{id.step}/{id.prompt}").random() > self.flat else 0.0

    def kept(self, tokens: int, noise: random.Random) -> int:
        """Of tokens of older weights, those before the first one that differs."""
        if self.keep >= 1:
            return tokens
        return min(tokens, int(math.log(1 - noise.random()) / math.log(self.keep)) if self.keep > 0 else 0)

    def drafted(self, entry: Entry) -> Drafting | None:
        """A sample's forwards and accepted drafts, about."""
        if self.drafts is None:
            return None
        forwards = round(entry.length / self.drafts.tokens(self.slots, seen=entry.seen))
        return Drafting(forwards, entry.length - forwards, entry.length - forwards, 0.0, 0.0, 0.0)


@dataclass
class Totals:
    """Totals of a run. Slot seconds are summed over all slots until the last sample was generated."""

    makespan_s: float = 0.0
    rollout_s: float = 0.0  # until the last sample was generated
    slot_s: float = 0.0
    busy_s: float = 0.0
    tokens: int = 0
    ahead: int = 0  # tokens written ahead, with weights that were too old
    kept: int = 0  # of these
    moved: int = 0  # samples
    filtered: int = 0  # samples of groups without signal
    dropped: int = 0
    events: int = 0
    step_s: list[float] = field(default_factory=list)  # when each step was trained


def bound_s(workload: Workload, cluster: Cluster, tokens: int = 0) -> float:
    """What no schedule can beat: all tokens with all slots in use, then the training of the last step.

    `tokens`: that were generated; 0: those of the plan without refills. With drafts, all slots have samples of the
    same kind: prompts with history, or without.
    """
    full_s = {seen: token_s(cluster, cluster.slots, seen=seen) / cluster.slots for seen in (False, True)}
    lengths = [0, 0]
    for step in range(workload.plan.steps):
        seen = (step + 1) * workload.plan.prompts_per_step > workload.plan.size  # else all of its prompts are new
        lengths[seen] += sum(map(workload.length, workload.plan.samples(step)))
    scale = tokens / sum(lengths) if tokens else 1.0
    work = scale * sum(lengths[seen] * full_s[seen] for seen in (False, True))
    end = work / sum(1 / cluster.slow.get(number, 1.0) for number in range(cluster.workers))
    return max(end, workload.plan.steps * cluster.train_s) if cluster.overlap else end + cluster.train_s


def token_s(cluster: Cluster, requests: int, *, seen: bool) -> float:
    """Seconds per token of one sample, among so many of its kind, on a worker at full speed."""
    drafts = cluster.drafts or PLAIN
    seen = seen and cluster.drafts is not None
    return cluster.cost(requests) * drafts.dearer(requests, requests * seen) / drafts.tokens(requests, seen=seen)
