"""`python -m benchmarks rewards`: how many scores a second one reward worker makes, with a scorer that costs nothing.

Store, broker and reward worker are the real processes, with the real scoring processes in their jails. Rollout
workers and trainer are emulated: they answer at once, so samples wait for a score. The scorer compares two strings.
So the processor time is what rhymed itself needs for a score: in the worker (reading, handing on, storing, reporting)
and in its scoring processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil

from benchmarks.actors import Rollout, Trainer
from benchmarks.scale.cluster import PATIENCE_S, cluster, config_of, cpu_seconds, until_connected
from rhymed.core.config import Config
from rhymed.core.run.layout import RunLayout
from rhymed_store.client import StoreClient

PROCESSES = 2  # scoring processes


def run(quick: bool) -> dict[str, float]:
    """Measures and prints a table. Returns the numbers; units are in the names."""
    results = asyncio.run(_rewards(steps=3 if quick else 20))
    for name, value in results.items():
        print(f"{name:<42} {value:>12,.1f}")
    return results


async def _rewards(steps: int) -> dict[str, float]:
    plain = config_of(prompts_per_step=64, group_size=16, steps=steps)
    reward = {"scorer": "exact", "processes": PROCESSES}
    config = Config.model_validate({**plain.model_dump(exclude_unset=True), "reward": reward})
    async with cluster(config) as (where, _), contextlib.AsyncExitStack() as stack:
        store = StoreClient(where.store, "actors")
        stack.callback(store.close)
        worker = psutil.Process(stack.enter_context(_worker(where)).pid)
        for number in range(4):
            await stack.enter_async_context(Rollout(where.broker, store, f"rollout-{number}", slots=128))
        await until_connected(where, 5)
        before, scoring, began = cpu_seconds(worker), _children_s(worker), time.monotonic()
        trainer = await stack.enter_async_context(Trainer(where.broker, store, "trainer"))
        await asyncio.wait_for(trainer.over.wait(), PATIENCE_S)
        wall_s = time.monotonic() - began
        worker_s, scoring_s = cpu_seconds(worker) - before, _children_s(worker) - scoring
    scores = sum(len(step.samples) for step in trainer.steps)
    return {
        "rewards/scores": float(scores),
        "rewards/per_wall_s": scores / wall_s,
        "rewards/per_worker_cpu_s": scores / worker_s,
        "rewards/worker_cpu_us": 1e6 * worker_s / scores,
        "rewards/scoring_cpu_us": 1e6 * scoring_s / scores,
    }


@contextlib.contextmanager
def _worker(where: RunLayout) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "rhymed", "worker", str(where.config), "--role", "reward", "--name", "reward-0"]
    with subprocess.Popen(command) as process:
        try:
            yield process
        finally:
            process.terminate()  # so that its scoring processes end, too
            process.wait(30)


def _children_s(process: psutil.Process) -> float:
    """Processor time of the scoring processes, which live as long as their worker."""
    total = 0.0
    for child in process.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += cpu_seconds(child)
    return total
