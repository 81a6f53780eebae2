"""`python -m benchmarks pipe`: schedules compared in virtual time, with the broker's own ledger and policies.

`workload`: 512 prompts x 16 per step, log-normal lengths (0.8 between prompts, 0.35 within, mean 3,000 tokens, cap
32,768), 20 steps over 2,048 prompts, 32 workers with 32 slots, training a quarter of the ideal rollout time.
`scaling`: 16 and 1,024 workers with 128 samples each per step. `decisions`: CPU time of the ledger per event with
4,096 workers. `reality`: 32 and 256 real workers with the trace engine, compared with the simulator. An engine's step
takes 10 ms + 0.1 ms per sample, unless a file gives another curve.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import fidelity
from rhymed_broker.ledger.actions import Action
from rhymed_broker.ledger.ledger import Ledger
from rhymed_broker.scheduler import POLICIES
from rhymed_broker.simulate.cluster import Cluster, bound_s
from rhymed_broker.simulate.engine import Cost
from rhymed_broker.simulate.study import MODES, Mode, compare, table
from rhymed_broker.simulate.workload import Recorded, Shape, Synthetic, Workload, read_trace
from rhymed_broker.simulate.world import World


def run(quick: bool, trace: Path | None = None, cost: Path | None = None, keep: float = 0.9987) -> dict[str, Any]:
    """`trace`: recorded lengths. `cost`: a measured curve."""
    cluster = Cluster(workers=32, slots=32, keep=keep)
    if cost is not None:
        cluster = replace(cluster, cost=Cost.read(cost))
    workload: Workload = Synthetic(Shape(prompts=256, prompts_per_step=64, steps=6) if quick else Shape())
    if trace is not None:
        workload = Recorded(read_trace(trace), 16)
        cluster = replace(cluster, workers=2, slots=16, reward_s=0.01, load_s=0.05)
    elif quick:
        cluster = replace(cluster, workers=8, slots=16)
    results: dict[str, Any] = {"workload": _workload(workload, cluster)}
    if trace is None:
        results["scaling"] = _scaling(64 if quick else 1024)
        results["decisions"] = _decisions(256 if quick else 4096)
        if quick:
            results["reality"] = fidelity.run([Mode("flow", 1)], workers=4, steps=2)
        else:
            results["reality"] = fidelity.run([Mode("fifo"), Mode("flow", 1), Mode("flow", 0, 1)])
            results["reality"] += fidelity.run([Mode("flow", 1)], workers=256, steps=3)
    return results


def _workload(workload: Workload, cluster: Cluster) -> list[dict[str, Any]]:
    step_s = bound_s(workload, cluster) / workload.plan.steps
    cluster = replace(cluster, train_s=step_s / 4, beat_s=max(0.2, step_s / 50))
    print(f"{cluster.workers} workers x {cluster.slots} slots, ideal rollout {step_s:.1f} s per step", flush=True)
    results = compare(workload, cluster, MODES)
    print(table(results), flush=True)
    return [result.row() for result in results]


def _scaling(many: int) -> dict[str, float]:
    """The share of the bound that `flow` reaches at staleness 1, with few and many workers and the same load each."""
    result = {}
    for workers in (16, many):
        shape = Shape(prompts=16 * workers, prompts_per_step=8 * workers, steps=6)
        workload, cluster = Synthetic(shape), Cluster(workers=workers, slots=8)
        step_s = bound_s(workload, cluster) / shape.steps
        cluster = replace(cluster, train_s=step_s / 4, beat_s=step_s / 10)
        row = compare(workload, cluster, [Mode("flow", 1)])[0].row()
        result[f"of_bound_{workers}"] = row["of_bound"]
        print(f"{workers} workers: {row['of_bound']:.3f} of the bound", flush=True)
    return result


class _Timed(Ledger):
    """A ledger that measures its own time."""

    spent_s = 0.0
    events = 0

    def generated(self, *arguments: Any) -> None:
        began = time.perf_counter()
        super().generated(*arguments)
        self.spent_s += time.perf_counter() - began
        self.events += 1

    def drain(self, now: float) -> list[Action]:
        began = time.perf_counter()
        actions = super().drain(now)
        self.spent_s += time.perf_counter() - began
        return actions


def _decisions(workers: int) -> dict[str, float]:
    """Microseconds of ledger and policy per generated sample, its scoring and dispatch included."""
    shape = Shape(prompts=4 * workers, prompts_per_step=workers, group_size=4, steps=20, mean=300, cap=4000)
    workload, cluster = Synthetic(shape), Cluster(workers=workers, slots=2)
    step_s = bound_s(workload, cluster) / shape.steps
    cluster = replace(cluster, train_s=step_s / 4, beat_s=step_s / 2)
    world = World(workload, cluster, POLICIES["flow"], max_staleness=1, ledger=_Timed)
    began = time.perf_counter()
    world.run()
    ledger = world.ledger
    assert isinstance(ledger, _Timed), "it was passed in"
    result = {
        "workers": float(workers),
        "samples": float(shape.steps * shape.prompts_per_step * shape.group_size),
        "simulated_in_s": time.perf_counter() - began,
        "decision_us": 1e6 * ledger.spent_s / ledger.events,
    }
    print(f"{workers} workers, {shape.steps} steps: {result['simulated_in_s']:.0f} s, {result['decision_us']:.0f} us")
    return result
