"""The same variants in virtual time, where decoding is bound by memory: verified tokens are free.

An engine's step takes 10 ms + 0.1 ms per sample unless a file gives another curve; training takes a quarter of the
ideal rollout without drafts. Each prompt is seen once an epoch of four steps; the first epoch has no history.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.whole.variants import Variant
from rhymed_broker.plan import LONGEST
from rhymed_broker.simulate.cluster import Cluster, bound_s
from rhymed_broker.simulate.engine import Cost, read
from rhymed_broker.simulate.study import Mode, compare
from rhymed_broker.simulate.workload import Shape, Synthetic

EPOCH = 4  # steps
GROUP = 16
SAMPLES = 256  # per engine and step
SLOTS = 32

Row = dict[str, Any]


def simulate(
    engines: Sequence[int], steps: int, variants: Sequence[Variant], cost: Path | None, samples: int = SAMPLES
) -> list[Row]:
    """A row for each number of engines and variant. `samples`: per engine and step."""
    rows: list[Row] = []
    for count in engines:
        each = max(1, count * samples // GROUP)
        shape = Shape(prompts=EPOCH * each, prompts_per_step=each, group_size=GROUP, steps=steps)
        cluster = Cluster(workers=count, slots=SLOTS)
        if cost is not None:
            cluster = replace(cluster, cost=Cost.read(cost))
        workloads = {"uniform": Synthetic(shape), "length": Synthetic(shape._replace(collect=LONGEST))}
        step_s = bound_s(workloads["uniform"], cluster) / steps
        cluster = replace(cluster, train_s=step_s / 4, beat_s=max(1.0, step_s / 50))
        for variant in variants:
            rows.append({"engines": count, **_row(workloads[variant.sampler], cluster, variant, steps)})
            print(_line(rows[-1], rows), flush=True)
    return rows


def _row(workload: Synthetic, cluster: Cluster, variant: Variant, steps: int) -> Row:
    began = time.monotonic()
    drafted = replace(cluster, drafts=read("free") if variant.drafts else None, overlap=variant.overlap)
    (result,) = compare(workload, drafted, [Mode(variant.policy, variant.max_staleness)])
    ends = result.totals.step_s
    later = (ends[-1] - ends[EPOCH - 1]) / (steps - EPOCH) if steps > EPOCH else None
    return {
        "variant": variant.name,
        "makespan_s": result.totals.makespan_s,
        "later_step_s": later,  # with history
        "of_bound": result.row()["of_bound"],
        "bubble": result.row()["bubble_ratio"],
        "simulated_in_s": time.monotonic() - began,
    }


def _line(row: Row, rows: Sequence[Row]) -> str:
    first = next(one for one in rows if one["engines"] == row["engines"])
    later = ""
    if row["later_step_s"]:
        later = (
            f" | with history {row['later_step_s']:.1f} s a step, {first['later_step_s'] / row['later_step_s']:.2f}"
        )
    return (
        f"{row['engines']:>5} engines, {row['variant']:<12} | {row['makespan_s']:.0f} s,"
        f" {first['makespan_s'] / row['makespan_s']:.2f}{later} | {row['of_bound']:.3f} of the bound"
    )
