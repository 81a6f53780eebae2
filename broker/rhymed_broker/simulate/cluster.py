"""What a simulated run is given, and what it measures."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import NamedTuple

from rhymed.messages import Drafting, SampleId
from rhymed_broker.simulate.drafts import Drafts
from rhymed_broker.simulate.engine import Cost, Entry
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
    slows: dict[float, tuple[int, float]] = field(default_factory=dict)  # time -> (worker, times slower from then on)
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


class Totals(NamedTuple):
    """Totals of a run. Slot seconds are summed over all slots until the last sample was generated."""

    makespan_s: float
    rollout_s: float  # until the last sample was generated
    slot_s: float
    busy_s: float
    steady_slot_s: float  # the same, until no sample was waiting
    steady_busy_s: float
    tokens: int
    ahead: int  # tokens written ahead, with weights that were too old
    kept: int  # of these
    moved: int  # samples
    filtered: int  # samples of groups without signal
    dropped: int
    events: int
    step_s: list[float]  # when each step was trained
