"""How long the broker holds its event loop while steps open and end, with many connected workers.

The real broker and store, and emulated workers that answer at once, each over its own socket. A meter in the broker's
process wakes every millisecond: the loop's thread had this processor time, and this much time passed, since it last
woke. So one number is a whole turn of the loop and up to a millisecond more. Processor time is what the broker needs;
the wall clock also shows what other processes of the machine took from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.actors import Trainer
from benchmarks.scale.cluster import PATIENCE_S, cluster, config_of, cpu_seconds, emulated_workers, until_connected
from rhymed.core.config import Config
from rhymed.core.run.layout import RunLayout, layout_of
from rhymed_broker.service import BrokerService
from rhymed_store.client import StoreClient

WAKE_S = 0.001
LEAST_MS = 5.0  # of processor time or of the wall clock: shorter turns are only counted
STEPS = 3
GROUP = 16


class MeasuredBroker(BrokerService):
    """Appends `[when, processor ms, wall ms]` of its long turns to a file."""

    def __init__(self, config: Config, layout: RunLayout, turns: Path) -> None:
        super().__init__(config, layout)
        self._turns_file = turns

    async def open(self) -> None:
        self.spawn(self._measure())
        await super().open()

    async def _measure(self) -> None:
        with self._turns_file.open("a", buffering=1) as file:
            cpu, wall = time.thread_time(), time.monotonic()
            while True:
                await asyncio.sleep(WAKE_S)
                cpu_ms, wall_ms = 1000 * (time.thread_time() - cpu), 1000 * (time.monotonic() - wall)
                if max(cpu_ms, wall_ms) >= LEAST_MS:
                    file.write(json.dumps([wall, cpu_ms, wall_ms]) + "\n")
                cpu, wall = time.thread_time(), time.monotonic()


@contextlib.contextmanager
def measured_broker(where: RunLayout) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "benchmarks.scale.pauses", str(where.config), str(_file(where))]
    with subprocess.Popen(command) as process:
        try:
            yield process
        finally:
            process.kill()


def _file(where: RunLayout) -> Path:
    return where.folder / "turns.jsonl"


async def pauses(workers: int, samples: int) -> dict[str, float]:
    """`workers`: a quarter of them reward workers; `samples`: of each of a few steps."""
    config = config_of(prompts_per_step=max(1, samples // GROUP), group_size=GROUP, steps=STEPS)
    schedule = config.schedule.model_copy(update={"heartbeat_s": 2.0, "lost_after_s": 120.0})
    config = config.model_copy(update={"schedule": schedule})
    async with cluster(config, measured_broker) as (where, broker):
        store = StoreClient(where.store, "actors")
        processes = min(4, workers)
        with emulated_workers(where, workers, processes), contextlib.closing(store):
            connected = workers // processes * processes
            await until_connected(where, connected)
            began, cpu_s = time.monotonic(), cpu_seconds(broker)
            async with Trainer(where.broker, store, "trainer") as trainer:
                await asyncio.wait_for(trainer.over.wait(), PATIENCE_S)
            wall_s, cpu_s = time.monotonic() - began, cpu_seconds(broker) - cpu_s
        turns = [json.loads(line) for line in _file(where).read_text().splitlines()]
    turns = [turn for turn in turns if turn[0] >= began]
    trained = sum(len(step.samples) for step in trainer.steps)
    return {
        "pauses/workers": float(connected),
        "pauses/samples_per_step": float(trained // max(1, len(trainer.steps))),
        "pauses/longest_turn_cpu_ms": max((cpu_ms for _, cpu_ms, _ in turns), default=0.0),
        "pauses/longest_turn_wall_ms": max((wall_ms for _, _, wall_ms in turns), default=0.0),
        "pauses/turns_over_50_cpu_ms": float(sum(cpu_ms > 50 for _, cpu_ms, _ in turns)),
        "pauses/turns_over_20_cpu_ms": float(sum(cpu_ms > 20 for _, cpu_ms, _ in turns)),
        "pauses/broker_cpu_us_per_sample": 1e6 * cpu_s / max(1, trained),
        "pauses/broker_cpu_percent": 100 * cpu_s / wall_s,
    }


if __name__ == "__main__":
    from rhymed.core.service.process import serve
    from rhymed.core.wire.limits import raise_file_limit

    raise_file_limit()
    measured = Config.model_validate_json(Path(sys.argv[1]).read_text())
    serve(lambda: MeasuredBroker(measured, layout_of(measured), Path(sys.argv[2])))
