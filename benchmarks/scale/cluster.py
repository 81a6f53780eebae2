"""Store and broker of a benchmark as real processes, and emulated workers in processes of their own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from benchmarks.actors import Actor, Reward, Rollout
from rhymed.core.config import Config
from rhymed.core.messages import Queues
from rhymed.core.run.client import ask
from rhymed.core.run.layout import RunLayout, layout_of
from rhymed.core.wire.limits import raise_file_limit
from rhymed.core.wire.sockets import Client
from rhymed_store.client import StoreClient

StartsBroker = Callable[[RunLayout], contextlib.AbstractContextManager[subprocess.Popen[bytes]]]

PATIENCE_S = 300.0
MODULE = "benchmarks.scale.cluster"


def config_of(prompts_per_step: int, group_size: int, steps: int) -> Config:
    folder = Path(tempfile.mkdtemp(prefix="rhymed-bench-"))
    data = folder / "rows.jsonl"
    rows = [{"prompt": str(number), "answer": "1"} for number in range(2 * prompts_per_step)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
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
async def cluster(
    config: Config, start: StartsBroker | None = None
) -> AsyncIterator[tuple[RunLayout, psutil.Process]]:
    """Runs store and broker of this configuration. Removes the folder at the end. `start`: another broker."""
    where = layout_of(config)
    where.folder.mkdir(parents=True)
    where.config.write_text(config.model_dump_json())
    with process_of("store", where), start(where) if start else process_of("broker", where) as broker:
        try:
            yield where, psutil.Process(broker.pid)
        finally:
            await asyncio.to_thread(_remove, where.folder.parent)


@contextlib.contextmanager
def process_of(command: str, where: RunLayout) -> Iterator[subprocess.Popen[bytes]]:
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
    children = [spawn(MODULE, where.broker, where.store, str(workers // processes), str(n)) for n in range(processes)]
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


def spawn(module: str, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", module, *arguments], stdout=subprocess.PIPE)


async def _emulate(broker: str, store_address: str, count: int, number: int) -> None:
    """Runs many workers in this process until it is killed."""
    raise_file_limit()
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

    uvloop.run(_emulate(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
