"""A run on a Ray cluster that loses machines, kind by kind, and gets others."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import NamedTuple

from benchmarks.cluster.machines import Machines
from benchmarks.cluster.trial import Trial

WINDOW = 3  # steps, of which the mean is compared with the usual one
FULL = 1.5  # a step that takes less than this times the usual one is at full speed


class Loss(NamedTuple):
    kind: str
    step: int  # trained before it
    at: float  # time.time


@dataclass
class Plan:
    """What happens to the cluster between steps of a run."""

    run: Trial
    machines: Machines

    def rollouts(self) -> None:
        """A machine with a rollout worker, and without the trainer."""
        places = {one.name: one.raylet for one in self.machines.watched()}
        alone = [name for name in places if name.startswith("rollout") and places[name] != places.get("trainer")]
        self.machines.kill(alone[0] if alone else "rollout-0")

    def trainer(self) -> None:
        self.machines.kill("trainer")

    def ray_alone(self) -> None:
        """Ray ends on the machine of the trainer, which itself lives."""
        self.machines.kill("trainer", ray_alone=True)

    def head(self) -> None:
        self.machines.kill_head()

    def added(self) -> None:
        self.machines.add()

    def settled(self, names: set[str]) -> bool:
        """All these processes have a place."""
        return names <= {one.name for one in self.machines.watched() if one.raylet}


KINDS: dict[str, Callable[[Plan], None]] = {
    "rollout machine": Plan.rollouts,
    "trainer machine": Plan.trainer,
    "Ray of a machine": Plan.ray_alone,
    "Ray's head": Plan.head,
}


def suffer(plan: Plan, kinds: list[str], names: set[str], every: int) -> list[Loss]:
    """Each kind after `every` further steps, once all processes have their places. A lost machine is replaced."""
    losses = []
    for kind in kinds:
        plan.run.wait_for(lambda: plan.settled(names), f"a place for {', '.join(sorted(names))}")
        plan.run.until(len(plan.run.done()) + every)
        losses.append(Loss(kind, len(plan.run.done()), time.time()))
        KINDS[kind](plan)
        if kind != "Ray's head":
            plan.added()
    return losses


def usual_s(times: list[float]) -> float:
    """Seconds of a step, the median without the first ones."""
    gaps = [after - before for before, after in pairwise(times[2:])]
    return median(gaps) if gaps else 0.0


def recovery_s(times: list[float], loss: Loss, usual: float) -> float | None:
    """Seconds from a loss until the first of `WINDOW` steps that are at full speed together; None: the run ended."""
    for first in range(len(times) - WINDOW):
        if times[first] >= loss.at and (times[first + WINDOW] - times[first]) / WINDOW <= FULL * usual:
            return times[first] - loss.at
    return None


def useful_share(times: list[float], losses: list[Loss], usual: float) -> float:
    """Useful time over total (ETTR): the steps at the mean speed that they had outside of the recoveries, divided by
    the time that they took. Speeds are of the same run, so a machine that becomes slower changes nothing."""
    spans = [(loss.at, loss.at + (recovery_s(times, loss, usual) or float("inf"))) for loss in losses]
    calm = [
        after - before
        for before, after in pairwise(times)
        if not any(before < end and after > start for start, end in spans)
    ]
    return fmean(calm) * (len(times) - 1) / (times[-1] - times[0]) if calm else 0.0
