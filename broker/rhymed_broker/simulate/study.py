"""Compares policies on one workload with an oracle and a bound: as a table, and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rhymed.core.messages import SampleId
from rhymed_broker.scheduler import POLICIES
from rhymed_broker.simulate.cluster import Cluster, Totals, bound_s
from rhymed_broker.simulate.workload import Workload
from rhymed_broker.simulate.world import World


class Mode(NamedTuple):
    """A policy with a staleness contract."""

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
    bound_s: float

    def row(self) -> dict[str, Any]:
        totals = self.totals
        return {
            "mode": str(self.mode),
            "makespan_s": totals.makespan_s,
            "of_bound": self.bound_s / totals.makespan_s,
            "bubble_ratio": 1 - totals.busy_s / totals.slot_s if totals.slot_s else 0.0,
            "ahead_tokens_ratio": totals.ahead / max(1, totals.tokens),
            "ahead_kept_ratio": totals.kept / totals.ahead if totals.ahead else 0.0,
            "wasted_tokens_ratio": (totals.ahead - totals.kept) / max(1, totals.tokens),
            "moved": totals.moved,
            "filtered": totals.filtered,
            "dropped": totals.dropped,
            "tokens": totals.tokens,
        }


class Oracle:
    """A forecast that reads the lengths from the workload."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._group = range(len(workload.plan.samples(0)) // max(1, len(workload.plan.prompts(0))))

    def remember(self, prompt: str, past: Sequence[tuple[int, int]]) -> None: ...

    def open(self, step: int, prompts: Iterable[str]) -> None: ...

    def finished(self, step: int, prompt: str, tokens: int) -> None: ...

    def running(self, step: int, prompt: str, tokens: Iterable[int]) -> None: ...

    def close(self, step: int) -> None: ...

    def expect(self, step: int, prompt: str) -> float:
        """Of the longest sample of the group, which decides when the group has to begin."""
        return float(max(self._workload.length(SampleId(step, prompt, index)) for index in self._group))

    def left(self, step: int, prompt: str, tokens: int) -> float:
        return max(0.0, self.expect(step, prompt) - tokens)


def compare(workload: Workload, cluster: Cluster, modes: Sequence[Mode]) -> list[Result]:
    bound, results = bound_s(workload, cluster), []
    for mode in modes:
        world = World(
            workload,
            cluster,
            POLICIES[mode.policy],
            max_staleness=mode.max_staleness,
            run_ahead=mode.run_ahead,
            forecast=Oracle(workload) if mode.oracle else None,
        )
        totals = world.run()
        lower = bound_s(workload, cluster, totals.tokens) if cluster.flat else bound
        results.append(Result(mode, totals, lower))
    return results


def table(results: Sequence[Result]) -> str:
    """As text; speed-ups are relative to the first result."""
    first = results[0].totals.makespan_s
    heads = (
        ("faster", 8),
        ("of bound", 10),
        ("bubble", 8),
        ("ahead", 7),
        ("kept", 6),
        ("moved", 7),
    )
    lines = [f"{'':<36}{'makespan':>10}" + "".join(f"{head:>{width}}" for head, width in heads)]
    for result in results:
        row = result.row()
        lines.append(
            f"{row['mode']:<36}{row['makespan_s']:>9.0f}s{first / row['makespan_s']:>8.2f}{row['of_bound']:>10.3f}"
            f"{row['bubble_ratio']:>8.3f}{row['ahead_tokens_ratio']:>7.2f}"
            f"{row['ahead_kept_ratio']:>6.2f}{row['moved']:>7}"
        )
    return "\n".join(lines)
