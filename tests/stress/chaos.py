"""`python -m tests.stress.chaos`: the same run twice, once calm and once with injected faults, then an audit of both.

A seeded series of faults hits a real `rhymed run`: SIGKILL to one process (store, broker, trainer, a rollout or
reward worker, a scoring process), a pause (SIGSTOP, later SIGCONT: a process that hangs), SIGTERM to a worker, and
SIGKILL to everything at once, supervisor included, after which the run is resumed. It passes when both runs trained
the same samples in the same steps, bit for bit, and nothing acknowledged was lost. SIGKILL leaves the kernel's page
cache intact, so this does not show what a power loss does to a disk.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks.twins import compare_runs
from rhymed.core.errors import ConfigError
from rhymed.records.history.compare.audit import audit
from rhymed.records.history.folder import open_folder
from rhymed.start.cli.options import add_override
from tests.stress import command
from tests.stress.faults import KINDS, USUAL, Fault, FaultInjector, FaultSchedule, Outcome
from tests.stress.recovery import Throughput
from tests.stress.run import LiveRun, Shape, Watch, with_model


def run(
    quick: bool,
    steps: int | None = None,
    kills: int | None = None,
    every: float | None = None,
    seed: int = 0,
    rollout: int = 3,
    reward: int = 2,
    kinds: Sequence[str] = USUAL,
    out: Path | None = None,
    override: Sequence[str] = (),
    ranks: int = 0,
) -> dict[str, Any]:
    """`kills`: at most. `every`: mean seconds between two. `out`: a folder that keeps the runs. `ranks`: of a trainer
    with a tiny model; 0: the trace engine's, which has none."""
    if unknown := set(kinds) - set(KINDS):
        raise ConfigError(f"--kinds {', '.join(sorted(unknown))}: there are {', '.join(KINDS)}")
    folder = out or Path(tempfile.mkdtemp(prefix="rhymed-chaos-"))
    settings = with_model(folder.resolve(), ranks) if ranks else {}
    shape = Shape(steps or (30 if quick else 200), rollout, reward, settings=settings, override=override)
    kills = (12 if quick else 1_000_000) if kills is None else kills
    result = asyncio.run(_both(shape, folder, FaultSchedule(seed, kills, every or (2.0 if quick else 5.0), kinds)))
    if out is None and result["good"]:
        shutil.rmtree(folder)
    return result


async def _both(shape: Shape, folder: Path, faults: FaultSchedule) -> dict[str, Any]:
    print(f"{shape.steps} steps in {folder}", flush=True)
    with LiveRun(shape.write(folder, "calm")) as calm:
        throughput, calm_s = await calm_run(calm)
    print(f"calm: {calm_s:.0f} s, {throughput.usual:,.0f} tokens/s", flush=True)
    with LiveRun(shape.write(folder, "chaos")) as chaos:
        outcome = await FaultInjector(chaos, faults, throughput).run()
    return judge(calm, chaos, throughput, calm_s, outcome)


async def calm_run(run: LiveRun) -> tuple[Throughput, float]:
    watch, started = Watch(run), time.monotonic()
    watching = asyncio.create_task(watch.run())
    try:
        await run.ended()
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    if run.status != 0:
        raise ConfigError(f"the calm run failed, so there is nothing to compare with:\n{run.tail()}")
    return Throughput(watch.points), time.monotonic() - started


def judge(calm: LiveRun, chaos: LiveRun, throughput: Throughput, calm_s: float, outcome: Outcome) -> dict[str, Any]:
    with open_folder(calm.where.folder) as one, open_folder(chaos.where.folder) as other:
        peace, war = audit(one), audit(other)
    both = compare_runs(calm.where.folder, chaos.where.folder)
    wrong = [f"calm: {fault}" for fault in peace.wrong] + [f"chaos: {fault}" for fault in war.wrong + both.wrong]
    wrong += [f"the supervisor gave up: {said}" for said in outcome.gave_up]
    wrong += [f"{count} samples were dropped" for count in [war.dropped] if count]
    wrong += [f"{outcome.forgotten} acknowledged samples were lost"] if outcome.forgotten else []
    result = {
        "steps": war.steps,
        "epochs": war.epochs,
        "samples": war.trained,
        "dropped": war.dropped,
        "filtered": war.filtered,
        "kills": len(outcome.faults),
        "seconds": outcome.seconds,
        "calm_seconds": calm_s,
        "calm_tokens_per_s": throughput.usual,
        "acknowledged_lost": outcome.forgotten,
        "table": _table(outcome.faults, throughput),
        "audit": both.weights,
        "wrong": wrong,
        "good": not wrong,
        "folder": str(chaos.where.folder),
    }
    _print(result)
    return result


def _table(faults: Sequence[Fault], throughput: Throughput) -> list[dict[str, Any]]:
    rows = []
    for kind in sorted({fault.kind for fault in faults}):
        mine = [fault for fault in faults if fault.kind == kind]
        back = [fault.recovered_s for fault in mine if fault.recovered_s is not None]
        losses = [loss.tokens for fault in mine for loss in fault.losses]
        rows.append(
            {
                "kind": kind,
                "kills": len(mine),
                "recovered": len(back),
                "recovery_s": median(back) if back else None,
                "longest_s": max(back) if back else None,
                "held": len(losses),
                "lost_mean": mean(losses) if losses else None,
                "lost_max": max(losses) if losses else None,
            }
        )
    calm = throughput.calm_s
    waits = {
        "recovered": len(calm),
        "recovery_s": median(calm) if calm else None,
        "longest_s": max(calm, default=None),
    }
    return [*rows, {"kind": "(nothing)", "kills": 0, **waits, "held": 0, "lost_mean": None, "lost_max": None}]


def _print(result: dict[str, Any]) -> None:
    heads = ("seconds to full speed: median, longest, n", "tokens lost a running sample: mean, max, n")
    print(f"\n{'kind':15} kills   {heads[0]:40}   {heads[1]}")
    for row in result["table"]:
        back = f"{_number(row['recovery_s'])} {_number(row['longest_s'])} {row['recovered']:5}"
        gone = f"{_number(row['lost_mean'])} {_number(row['lost_max'])} {row['held']:5}" if row["held"] else ""
        print(f"{row['kind']:15} {row['kills']:5}   {back:40}   {gone}".rstrip())
    print(
        f"\n{result['steps']} steps, {result['epochs']:.2f} epochs, {result['samples']:,} samples trained,"
        f" {result['filtered']} without signal, {result['dropped']} dropped,"
        f" {result['acknowledged_lost']} acknowledged ones lost;"
        f" {result['kills']} kills in {result['seconds']:.0f} s (calm: {result['calm_seconds']:.0f} s)"
    )
    print(result["audit"])
    for fault in result["wrong"][:20]:
        print(f"wrong: {fault}")
    print(
        "passed: every sample once, and the same as in the calm run"
        if result["good"]
        else f"failed; see {result['folder']}"
    )


def _number(value: float | None) -> str:
    return "      -" if value is None else f"{value:7.1f}"


def main() -> int:
    parser = command.parser("tests.stress.chaos", "train the same steps without and with faults, and compare")
    parser.add_argument("--steps", type=int, metavar="N", help="training steps of each run")
    parser.add_argument("--kills", type=int, metavar="N", help="at most this many faults")
    parser.add_argument("--every", type=float, metavar="S", help="mean seconds between two faults")
    parser.add_argument("--seed", type=int, metavar="N", help="of the series of faults")
    parser.add_argument("--rollout", type=int, metavar="N", help="rollout workers")
    parser.add_argument("--ranks", type=int, default=0, metavar="N", help="of a trainer with a tiny model")
    parser.add_argument("--reward", type=int, metavar="N", help="reward workers")
    parser.add_argument(
        "--kinds", type=lambda text: text.split(","), metavar="A,B", help=f"only these, of {', '.join(KINDS)}"
    )
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="keep the runs here")
    add_override(parser)
    return command.call(run, parser)


if __name__ == "__main__":
    sys.exit(main())
