"""Policies beside each other on the same workload, an oracle, and a bound: as a table, as JSON, as a picture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rhymed.messages import SampleId
from rhymed_broker.pipe import POLICIES
from rhymed_broker.simulate.cluster import Cluster, Totals
from rhymed_broker.simulate.workload import Workload
from rhymed_broker.simulate.world import World

BINS = 800  # of a picture's time axis


class Mode(NamedTuple):
    """A policy under a contract."""

    policy: str
    max_staleness: int = 0
    run_ahead: int = 0
    oracle: bool = False  # it knows every sample's length

    def __str__(self) -> str:
        ahead = " + run-ahead" if self.run_ahead else ""
        return f"{self.policy}, staleness {self.max_staleness}{ahead}{', oracle' if self.oracle else ''}"


MODES = (
    Mode("fifo"),  # plain synchronous
    Mode("fifo", 1),  # one step off
    Mode("rhyme", 1),
    Mode("flow"),
    Mode("flow", 0, 1),
    Mode("flow", 1),
    Mode("flow", 0, 1, oracle=True),
    Mode("flow", 1, 0, oracle=True),
)


@dataclass
class Result:
    mode: Mode
    totals: Totals
    world: World
    bound_s: float

    def row(self) -> dict[str, Any]:
        """Numbers; units are in the names."""
        one = self.totals
        return {
            "mode": str(self.mode),
            "makespan_s": one.makespan_s,
            "of_bound": self.bound_s / one.makespan_s,
            "bubble_ratio": 1 - one.busy_s / one.slot_s if one.slot_s else 0.0,
            "steady_bubble_ratio": 1 - one.steady_busy_s / one.steady_slot_s if one.steady_slot_s else 0.0,
            "ahead_tokens_ratio": one.ahead / max(1, one.tokens),
            "ahead_kept_ratio": one.kept / one.ahead if one.ahead else 0.0,
            "wasted_tokens_ratio": (one.ahead - one.kept) / max(1, one.tokens),
            "moved": one.moved,
            "dropped": one.dropped,
            "tokens": one.tokens,
        }


class Oracle:
    """A forecast that knows: what the workload will do."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._group = range(len(workload.plan.samples(0)) // max(1, len(workload.plan.prompts(0))))

    def remember(self, prompt: str, past: Sequence[tuple[int, int]]) -> None: ...

    def open(self, step: int, prompts: Iterable[str]) -> None: ...

    def finished(self, step: int, prompt: str, tokens: int) -> None: ...

    def running(self, step: int, prompt: str, tokens: Iterable[int]) -> None: ...

    def close(self, step: int) -> None: ...

    def expect(self, step: int, prompt: str) -> float:
        """Of the longest of the group: that one decides when it has to begin."""
        return float(max(self._workload.length(SampleId(step, prompt, index)) for index in self._group))

    def left(self, step: int, prompt: str, tokens: int) -> float:
        return max(0.0, self.expect(step, prompt) - tokens)


def bound_s(workload: Workload, cluster: Cluster) -> float:
    """No schedule is faster: all tokens at full slots everywhere, and the last step's training."""
    plan = workload.plan
    tokens = sum(workload.length(id) for step in range(plan.steps) for id in plan.samples(step))
    speed = sum(1 / cluster.slow.get(number, 1.0) for number in range(cluster.workers))
    return tokens * cluster.cost(cluster.slots) / (cluster.slots * speed) + cluster.train_s


def compare(workload: Workload, cluster: Cluster, modes: Sequence[Mode], *, trace: bool = False) -> list[Result]:
    bound, results = bound_s(workload, cluster), []
    for mode in modes:
        world = World(
            workload,
            cluster,
            POLICIES[mode.policy],
            max_staleness=mode.max_staleness,
            run_ahead=mode.run_ahead,
            forecast=Oracle(workload) if mode.oracle else None,
            trace=trace,
        )
        results.append(Result(mode, world.run(), world, bound))
    return results


def table(results: Sequence[Result]) -> str:
    """As text; the first is what the others are compared with."""
    first = results[0].totals.makespan_s
    heads = ("faster", 8), ("of bound", 10), ("bubble", 8), ("steady", 8), ("ahead", 7), ("kept", 6), ("moved", 7)
    lines = [f"{'':<36}{'makespan':>10}" + "".join(f"{head:>{width}}" for head, width in heads)]
    for one in results:
        row = one.row()
        lines.append(
            f"{row['mode']:<36}{row['makespan_s']:>9.0f}s{first / row['makespan_s']:>8.2f}{row['of_bound']:>10.3f}"
            f"{row['bubble_ratio']:>8.3f}{row['steady_bubble_ratio']:>8.3f}{row['ahead_tokens_ratio']:>7.2f}"
            f"{row['ahead_kept_ratio']:>6.2f}{row['moved']:>7}"
        )
    return "\n".join(lines)


def picture(results: Sequence[Result], path: Path) -> Path | None:
    """A Gantt picture: a row a worker, dark where its slots are full; a line where a step is trained.

    None without matplotlib. The worlds must have been traced.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    figure = Figure(figsize=(11, 1 + 1.6 * len(results)), layout="constrained")
    axes = figure.subplots(len(results), 1, sharex=True, squeeze=False)[:, 0]
    longest = max(one.totals.makespan_s for one in results)
    for axis, one in zip(axes, results, strict=True):
        image = axis.imshow(
            occupancy(one.world, longest), aspect="auto", cmap="Blues", vmin=0, vmax=1, interpolation="nearest",
            extent=(0, longest, len(one.world.engines), 0),
        )  # fmt: skip
        for at in one.world.step_s:
            axis.axvline(at, color="#cc7351", linewidth=0.8)
        axis.set_title(f"{one.mode}: {one.totals.makespan_s:,.0f} s", loc="left", fontsize=9)
        axis.set_yticks([])
    axes[-1].set(xlabel="seconds; a row is a worker, a line the end of a step's training")
    figure.colorbar(image, ax=axes, label="slots in use", shrink=0.4)
    figure.savefig(path, dpi=110)
    return path


def occupancy(world: World, longest: float) -> Any:
    """Part of a worker's slots that is in use [workers, BINS], as it was in the middle of each bin."""
    at = (np.arange(BINS) + 0.5) * longest / BINS
    rows = []
    for engine in world.engines.values():
        times = np.array([0.0, *(time for time, _ in engine.changes)])
        counts = np.array([0, *(count for _, count in engine.changes)])
        row = counts[np.searchsorted(times, at, side="right") - 1] / engine.slots
        rows.append(np.where(at > world.now, 0.0, row))
    return np.array(rows)
