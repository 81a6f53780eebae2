"""The simulator against real processes: rollout workers with the trace engine, real broker, store and sockets.

The workers run in one process and emulate engines in real time; a reward worker answers at once, the trainer after a
fixed time. The simulator gets the same lengths, cost curve and times.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.actors import Reward, Trainer
from benchmarks.scale.cluster import cluster, ready
from rhymed.core import messages
from rhymed.core.config import Config
from rhymed.core.run.layout import RunLayout
from rhymed.core.service.host import host_id
from rhymed.core.wire.sockets import Server
from rhymed.inputs.rows import prompt_id
from rhymed_broker.plan import Plan
from rhymed_broker.simulate.cluster import Cluster
from rhymed_broker.simulate.engine import Cost
from rhymed_broker.simulate.study import Mode, compare
from rhymed_store.client import StoreClient
from rhymed_workers.engines.trace import LOAD_S, TraceBook, TraceEngine
from rhymed_workers.rollout.worker import RolloutWorker

PATIENCE_S = 500.0
SAMPLE_EVERY_S = 0.02


class TraceWorkload:
    """The plan and the lengths that the trace engine follows."""

    def __init__(self, config: Config) -> None:
        rows = [json.loads(line) for line in Path(config.data.path).read_text().splitlines()]
        rollout, trainer = config.rollout, config.trainer
        prompts = [prompt_id(row) for row in rows]
        self.plan = Plan(prompts, rollout.prompts_per_step, rollout.group_size, trainer.epochs, trainer.steps)
        self.cap = rollout.max_response_length
        self._book = TraceBook(config.trace, config.rollout)
        self._lengths: dict[messages.SampleId, int] = {}

    def length(self, id: messages.SampleId) -> int:
        if id not in self._lengths:
            self._lengths[id] = len(self._book.response(id)[0])
        return self._lengths[id]


def run(modes: Sequence[Mode], *, workers: int = 32, slots: int = 8, steps: int = 6) -> list[dict[str, Any]]:
    """Makespan and bubble ratio of each mode, in real and in virtual time."""
    rows = []
    for mode in modes:
        config = _config(mode, workers * slots * 2, slots, steps)
        workload, train_s = TraceWorkload(config), 2.0
        real_s, real_bubble = asyncio.run(_measure(config, workers, train_s))
        trace = config.trace
        machines = Cluster(
            workers, slots, Cost.line(trace.step_s, trace.token_s), train_s, reward_s=0.02, load_s=LOAD_S,
            verify=trace.verify_s / (trace.step_s + trace.token_s * slots), keep=trace.keep, beat_s=1.0,
        )  # fmt: skip
        (result,) = compare(workload, machines, [mode])
        row = result.row()
        rows.append(
            {
                "mode": str(mode),
                "real_s": real_s,
                "simulated_s": row["makespan_s"],
                "real_bubble_ratio": real_bubble,
                "simulated_bubble_ratio": row["bubble_ratio"],
            }
        )
        print(
            f"{mode!s:<36} real {real_s:6.1f} s, bubble {real_bubble:.3f};"
            f" simulated {row['makespan_s']:6.1f} s, {row['bubble_ratio']:.3f}",
            flush=True,
        )
    return rows


def _config(mode: Mode, samples: int, slots: int, steps: int) -> Config:
    folder = Path(tempfile.mkdtemp(prefix="rhymed-bench-"))
    prompts, group = samples // 8, 8
    rows = [json.dumps({"prompt": str(number), "answer": ""}) + "\n" for number in range(2 * prompts)]
    (folder / "rows.jsonl").write_text("".join(rows))
    return Config.model_validate(
        {
            "run": {"name": "bench", "folder": str(folder)},
            "data": {"source": "jsonl", "path": str(folder / "rows.jsonl")},
            "rollout": {
                "prompts_per_step": prompts,
                "group_size": group,
                "engine": "trace",
                "max_concurrency": slots,
                "max_response_length": 400,
                "max_prompt_length": 16,
            },
            "trace": {"mean_length": 50, "step_s": 0.06, "token_s": 0.002},
            "trainer": {"epochs": steps, "steps": steps},
            "schedule": {
                "policy": mode.policy,
                "max_staleness": mode.max_staleness,
                "run_ahead": mode.run_ahead,
                "lost_after_s": 60,
            },
            "store": {"map_gib": 1.0, "durability": "async"},
        }
    )


async def _measure(config: Config, workers: int, train_s: float) -> tuple[float, float]:
    """(makespan in seconds, bubble ratio up to the last generated sample)."""
    async with cluster(config) as (where, _), contextlib.AsyncExitStack() as stack:
        stack.callback(_weights(where).close)
        store = StoreClient(where.store, "actors")
        stack.callback(store.close)
        await stack.enter_async_context(Reward(where.broker, store, "reward", slots=100_000))
        await ready(where)
        engines = [TraceEngine(config.trace, config.rollout) for _ in range(workers)]
        for number, engine in enumerate(engines):
            await stack.enter_async_context(RolloutWorker(config, where, f"w{number:04d}", engine).running())
        await asyncio.sleep(3.0)  # all have joined
        trainer = Trainer(where.broker, store, "trainer", work_s=train_s)
        trainer.weights = where.weights
        busy: list[float] = []
        began = time.monotonic()
        await stack.enter_async_context(trainer)
        watch = asyncio.create_task(_sample_occupancy(engines, config.rollout.max_concurrency, busy))
        await asyncio.wait_for(trainer.over.wait(), PATIENCE_S)
        seconds = time.monotonic() - began
        watch.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watch
    while busy and busy[-1] == 0:
        busy.pop()
    return seconds, 1 - sum(busy) / max(1, len(busy))


async def _sample_occupancy(engines: Sequence[TraceEngine], slots: int, busy: list[float]) -> None:
    while True:
        running = sum(engine.stats()["rollout/running"] for engine in engines)
        busy.append(running / (slots * len(engines)))
        await asyncio.sleep(SAMPLE_EVERY_S)


def _weights(where: RunLayout) -> Server:
    """Every version is the same small file."""
    file = where.folder / "weights"
    file.write_bytes(b"weights")

    async def answer(peer: bytes, message: Any, frames: Any) -> messages.Message:
        return messages.Manifest(
            version=message.version,
            edition="",
            host=host_id(),
            path=str(file),
            size=7,
            slice_bytes=7,
        )

    return Server(where.weights, messages.ToWeights, answer)
