"""`rhymed bench broker`: throughput of the broker, with emulated workers that answer at once.

Broker and store are real processes. `transitions`: every sample goes through six states, each with messages over real
sockets. The result is the broker's own CPU time, because workers and store share the machine's cores with it.
`connected`: many workers, each with its own socket, that send a heartbeat every second and work. The result is the
lag of the broker's event loop, compared with that of an idle process. Here the broker gets a higher priority if that
is permitted: emulated workers would take its core, which real ones, on other machines, do not.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil

from rhymed.bench.actors import Actor, Reward, Rollout, Trainer
from rhymed.config import Config
from rhymed.messages import Queues
from rhymed.run.client import ask
from rhymed.run.layout import RunLayout, layout_of
from rhymed.service.service import LagMeter
from rhymed.wire.sockets import Client
from rhymed_store.client import StoreClient

TRANSITIONS = 6  # of a sample, from waiting to trained
PATIENCE_S = 300.0


def run(quick: bool) -> dict[str, float]:
    """Measures and prints a table. Returns the numbers; units are in the names."""
    results = asyncio.run(_transitions(steps=8 if quick else 30))
    results |= asyncio.run(_connected(workers=512, seconds=10 if quick else 30))
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
                idle = _spawn("idle", str(seconds))
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


def config_of(prompts_per_step: int, group_size: int, steps: int) -> Config:
    folder = Path(tempfile.mkdtemp(prefix="rhymed-bench-"))
    data = folder / "rows.jsonl"
    data.write_text("".join(json.dumps({"prompt": str(i), "answer": ""}) + "\n" for i in range(2 * prompts_per_step)))
    return Config.model_validate(
        {
            "run": {"name": "bench", "folder": str(folder)},
            "data": {"source": "jsonl", "path": str(data)},
            "rollout": {"prompts_per_step": prompts_per_step, "group_size": group_size, "engine": "trace"},
            "trainer": {"epochs": steps, "steps": steps},
            "store": {"map_gib": 2.0, "durability": "async"},
            "net": {"http": ""},
        }
    )


@contextlib.asynccontextmanager
async def cluster(config: Config) -> AsyncIterator[tuple[RunLayout, psutil.Process]]:
    """Runs store and broker of this configuration. Removes the folder at the end."""
    where = layout_of(config)
    where.folder.mkdir(parents=True)
    where.config.write_text(config.model_dump_json())
    with _process("store", where), _process("broker", where) as broker:
        try:
            yield where, psutil.Process(broker.pid)
        finally:
            await asyncio.to_thread(_remove, where.folder.parent)


@contextlib.contextmanager
def _process(command: str, where: RunLayout) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-m", "rhymed", command, str(where.config)]) as process:
        try:
            yield process
        finally:
            process.kill()


def _remove(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def emulated_workers(where: RunLayout, workers: int, processes: int) -> Iterator[None]:
    """Emulated workers, a quarter of them reward workers, in processes of their own."""
    children = [_spawn(where.broker, where.store, str(workers // processes), str(n)) for n in range(processes)]
    try:
        yield
    finally:
        for child in children:
            child.kill()
            child.wait()


def raise_priority(process: psutil.Process) -> bool:
    try:
        process.nice(-15)
    except psutil.AccessDenied:
        return False
    return True


def cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


async def snapshot_of(layout: RunLayout) -> Queues:
    with contextlib.closing(Client(layout.broker, peer="broker")) as client:
        return await ask(client, brief=False, deadline_s=30)


async def ready(where: RunLayout) -> None:
    """Waits until the broker has read the dataset."""
    async with asyncio.timeout(PATIENCE_S):
        while (await snapshot_of(where)).steps == 0:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def until_connected(where: RunLayout, workers: int) -> Queues:
    async with asyncio.timeout(PATIENCE_S):
        while len((snapshot := await snapshot_of(where)).workers) < workers:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
    return snapshot


def _spawn(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "rhymed.bench.broker", *arguments], stdout=subprocess.PIPE)


async def _idle(seconds: float) -> None:
    meter = LagMeter()
    watch = asyncio.get_running_loop().create_task(meter.watch())
    await asyncio.sleep(seconds)
    watch.cancel()
    print(meter.p99_ms())


async def _emulate(broker: str, store_address: str, count: int, number: int) -> None:
    """Runs many workers in this process until it is killed."""
    store = StoreClient(store_address, f"actors-{number}")
    actors: list[Actor] = []
    for place in range(count):
        kind: Any = Reward if place % 4 == 0 else Rollout
        actors.append(kind(broker, store, f"{kind.role}-{number}-{place}", slots=16, work_s=0.5))
    async with contextlib.AsyncExitStack() as stack:
        for actor in actors:
            await stack.enter_async_context(actor)
        await asyncio.sleep(PATIENCE_S)


if __name__ == "__main__":
    import uvloop

    if sys.argv[1] == "idle":
        uvloop.run(_idle(float(sys.argv[2])))
    else:
        uvloop.run(_emulate(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
