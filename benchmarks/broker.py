"""`python -m benchmarks broker`: throughput of the broker, with emulated workers that answer at once.

Broker and store are real processes. `transitions`: every sample goes through six states, each with messages over real
sockets. The result is the broker's own CPU time, because workers and store share the machine's cores with it.
`connected`: many workers, each with its own socket, that send a heartbeat every second and work. The result is the
lag of the broker's event loop, compared with that of an idle process. `pauses` (`scale/pauses`): how long the
broker holds its event loop while large steps open. In `connected` the broker gets a higher priority if that
is permitted: emulated workers would take its core, which real ones, on other machines, do not.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time

from benchmarks.actors import Reward, Rollout, Trainer
from benchmarks.scale.cluster import (
    PATIENCE_S,
    cluster,
    config_of,
    cpu_seconds,
    emulated_workers,
    raise_priority,
    ready,
    snapshot_of,
    spawn,
    until_connected,
)
from benchmarks.scale.pauses import pauses
from rhymed.core.service.service import LagMeter
from rhymed.core.tasks import watched
from rhymed_store.client import StoreClient

TRANSITIONS = 6  # of a sample, from waiting to trained


def run(quick: bool, workers: int | None = None, samples: int | None = None) -> dict[str, float]:
    """Measures and prints a table. Returns the numbers; units are in the names.

    `workers`, `samples` (a step): only the pauses of the event loop are measured.
    """
    results: dict[str, float] = {}
    if workers is None and samples is None:
        results = asyncio.run(_transitions(steps=8 if quick else 30))
        results |= asyncio.run(_connected(workers=512, seconds=10 if quick else 30))
    most = (256, 8192) if quick else (4096, 65_536)
    results |= asyncio.run(pauses(workers or most[0], samples or most[1]))
    for name, value in results.items():
        print(f"{name:<42} {value:>12,.1f}")
    return results


async def _transitions(steps: int) -> dict[str, float]:
    """A few workers with many slots, so that messages carry batches, as those of real engines do."""
    async with cluster(config_of(prompts_per_step=64, group_size=16, steps=steps)) as (where, broker):
        store = StoreClient(where.store, "actors")
        rollouts = [Rollout(where.broker, store, f"rollout-{i}", slots=64) for i in range(8)]
        rewards = [Reward(where.broker, store, f"reward-{i}", slots=64) for i in range(4)]
        trainer = Trainer(where.broker, store, "trainer")
        async with contextlib.AsyncExitStack() as stack:
            for actor in (*rollouts, *rewards):
                await stack.enter_async_context(actor)
            await ready(where)
            cpu_s, started = cpu_seconds(broker), time.monotonic()
            await stack.enter_async_context(trainer)
            await asyncio.wait_for(trainer.over.wait(), PATIENCE_S)
            wall_s, cpu_s = time.monotonic() - started, cpu_seconds(broker) - cpu_s
        store.close()
    done = TRANSITIONS * sum(len(step.samples) for step in trainer.steps)
    return {
        "transitions/count": float(done),
        "transitions/per_broker_cpu_s": done / cpu_s,
        "transitions/per_wall_s": done / wall_s,
    }


async def _connected(workers: int, seconds: float) -> dict[str, float]:
    """Each worker has 16 slots and takes half a second; a quarter are reward workers."""
    config = config_of(prompts_per_step=512, group_size=16, steps=1000)
    async with cluster(config) as (where, broker):
        raised = raise_priority(broker)
        store = StoreClient(where.store, "actors")
        with emulated_workers(where, workers, processes=4), contextlib.closing(store):
            async with Trainer(where.broker, store, "trainer", work_s=0.1):
                snapshot = await until_connected(where, workers + 1)
                cpu_s, started, first = cpu_seconds(broker), time.monotonic(), snapshot
                lags = []
                idle = spawn("benchmarks.broker", str(seconds))
                while time.monotonic() - started < seconds:
                    await asyncio.sleep(1.0)
                    snapshot = await snapshot_of(where)
                    lags.append(snapshot.lag_ms)
                wall_s, cpu_s = time.monotonic() - started, cpu_seconds(broker) - cpu_s
                idle_lag_ms = float((await asyncio.to_thread(idle.communicate, timeout=PATIENCE_S))[0])
    return {
        "connected/workers": float(len(snapshot.workers) - 1),
        "connected/loop_lag_p99_ms": max(lags[-5:]),
        "connected/idle_process_lag_p99_ms": idle_lag_ms,
        "connected/broker_preferred": float(raised),
        "connected/samples_per_s": (snapshot.queues["trained"] - first.queues["trained"]) / wall_s,
        "connected/broker_cpu_percent": 100 * cpu_s / wall_s,
    }


async def _idle(seconds: float) -> None:
    meter = LagMeter()
    watch = watched(meter.watch())
    await asyncio.sleep(seconds)
    watch.cancel()
    print(meter.p99_ms())


if __name__ == "__main__":
    import uvloop

    uvloop.run(_idle(float(sys.argv[1])))
