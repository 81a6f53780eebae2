"""`python -m benchmarks cluster`: placement by Ray against local processes, recovery from each kind of loss, and
useful time.

The engine is `trace`, so only rhymed and Ray are measured, on one machine that plays several.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.cluster.losses import KINDS, Loss, Plan, recovery_s, suffer, useful_share, usual_s
from benchmarks.cluster.machines import Machines
from benchmarks.cluster.trial import Trial, config, on_ray
from rhymed.core import atomic
from rhymed.core.output import show

NODES, CPUS, WORKERS = 3, 2, 2
NAMES = {"trainer", "reward-0", *(f"rollout-{number}" for number in range(WORKERS))}
BETWEEN = 6  # steps between two losses


def run(quick: bool, rounds: int | None = None, steps: int | None = None, out: Path | None = None) -> dict[str, Any]:
    """`rounds`: of the comparison. `steps`: of each of its runs. `out`: a JSON file for the result."""
    folder = Path(tempfile.mkdtemp(prefix="rhymed-cluster-"))
    steps = steps or (10 if quick else 60)
    try:
        result: dict[str, Any] = {"overhead": _overhead(folder, rounds or (1 if quick else 5), steps)}
        usual = result["overhead"]["ray_step_s"]
        result["losses"] = _losses(folder, usual, 3 if quick else BETWEEN)
        result["useful"] = _useful(folder, usual, 20.0 if quick else 120.0, 2 if quick else 5)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if out is not None:
        atomic.write(out, json.dumps(result, indent=2) + "\n")
    return result


def _overhead(folder: Path, rounds: int, steps: int) -> dict[str, Any]:
    """Steps of local processes and of those that Ray placed, by turns."""
    found: dict[str, list[float]] = {"local": [], "ray": []}
    with Machines(NODES, CPUS) as machines:
        for number in range(rounds):
            for name, sections in (("local", {}), ("ray", on_ray(machines.address))):
                with Trial(config(folder, f"{name}-{number}", steps, WORKERS, **sections)) as trial:
                    trial.finish()
                    found[name].append(usual_s(trial.done()))
    local, ray = median(found["local"]), median(found["ray"])
    show(
        f"steps    local {local:.3f} s, Ray {ray:.3f} s: {100 * (ray / local - 1):+.1f} % ({rounds} turns)",
        flush=True,
    )
    return {"local_step_s": local, "ray_step_s": ray, "turns": found}


def _losses(folder: Path, usual: float, every: int) -> list[dict[str, Any]]:
    """One run that suffers each kind of loss."""
    kinds = list(KINDS)
    with Machines(NODES, CPUS) as machines:
        sections = on_ray(machines.address)
        steps = 1 + (len(kinds) + 2) * every + _steps_in(30.0, usual)
        with Trial(config(folder, "losses", steps, WORKERS, **sections)) as trial:
            trial.until(1)
            losses = suffer(Plan(trial, machines), kinds, NAMES, every)
            trial.finish()
            times = trial.done()
    rows = [{"kind": loss.kind, "recovery_s": recovery_s(times, loss, usual)} for loss in losses]
    for row in rows:
        seconds = "not before the end" if row["recovery_s"] is None else f"{row['recovery_s']:.1f} s"
        show(f"loss     {row['kind']:18} full speed after {seconds}", flush=True)
    return rows


def _useful(folder: Path, usual: float, every_s: float, count: int) -> dict[str, Any]:
    """The share of useful time while a machine is lost every so often, rollouts' and the trainer's by turns."""
    steps = _steps_in(every_s * (count + 1), usual)
    kinds = list(KINDS)[:2]
    losses: list[Loss] = []
    with (
        Machines(NODES, CPUS) as machines,
        Trial(config(folder, "useful", steps, WORKERS, **on_ray(machines.address))) as trial,
    ):
        trial.until(1)
        plan, begun = Plan(trial, machines), time.time()
        while len(losses) < count:
            time.sleep(max(0.0, begun + every_s * (len(losses) + 1) - time.time()))
            trial.wait_for(lambda: plan.settled(NAMES), "places")
            if (done := len(trial.done())) >= steps:
                break
            losses.append(Loss(kinds[len(losses) % len(kinds)], done, time.time()))
            KINDS[losses[-1].kind](plan)
            plan.added()
        trial.finish()
        end = losses[-1].at + every_s if losses else 0.0
        times = [at for at in trial.done() if at <= end]  # later steps are disturbed by nothing
    share, total = useful_share(times, losses, usual), times[-1] - times[0]
    show(
        f"useful   {share:.3f} of {total:.0f} s, with {len(losses)} machines lost, one every {every_s:g} s",
        flush=True,
    )
    return {"share": share, "seconds": total, "lost": len(losses), "every_s": every_s, "steps": len(times)}


def _steps_in(seconds: float, usual: float) -> int:
    return max(1, round(seconds / max(usual, 0.01)))
