"""A broker with a real store for tests, in this process or in its own."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.actors import Reward, Rollout, Trainer
from rhymed.core.config import Config
from rhymed.core.run.layout import RunLayout, layout_of
from rhymed_broker.service import BrokerService
from rhymed_store.client import StoreClient
from rhymed_store.service import StoreService


def changed(config: Config, **sections: dict) -> Config:
    tree = config.model_dump()
    for section, values in sections.items():
        tree[section] |= values
    return Config.model_validate(tree)


def small_run(folder: Path, **sections: dict[str, Any]) -> Config:
    """A run of six prompts, two in a step with four samples each, without a model. `sections`: what differs."""
    data = folder / "rows.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"p{number}", "answer": "1"}) + "\n" for number in range(6)))
    tree: dict[str, dict[str, Any]] = {
        "run": {"name": "test", "folder": str(folder / "runs")},
        "data": {"source": "jsonl", "path": str(data)},
        "rollout": {"prompts_per_step": 2, "group_size": 4, "engine": "trace"},
        "trainer": {"epochs": 1},
        "schedule": {"heartbeat_s": 0.1},
        "store": {"map_gib": 0.1, "durability": "async"},
    }
    return Config.model_validate(tree | {name: tree.get(name, {}) | values for name, values in sections.items()})


class Cluster:
    """Store and broker of one run, and links to them."""

    def __init__(self, config: Config, stack: contextlib.AsyncExitStack) -> None:
        self.config = config
        self.where: RunLayout = layout_of(config)
        self.stack = stack

    @functools.cached_property
    def broker(self) -> BrokerService:
        """It has bound its socket."""
        return BrokerService(self.config, self.where)

    async def open(self) -> Cluster:
        await self.open_store()
        await self.stack.enter_async_context(self.broker.running())
        return self

    async def open_store(self) -> None:
        await self.stack.enter_async_context(StoreService(self.config.store, self.where).running())
        self.store = StoreClient(self.where.store, "test")
        self.stack.callback(self.store.close)

    async def actor(self, kind: type, name: str, **settings: object) -> object:
        return await self.stack.enter_async_context(kind(self.where.broker, self.store, name, **settings))

    async def everybody(self, **settings: object) -> Trainer:
        await self.actor(Rollout, "rollout-0", **settings)
        await self.actor(Rollout, "rollout-1", **settings)
        await self.actor(Reward, "reward-0")
        trainer = await self.actor(Trainer, "trainer")
        assert isinstance(trainer, Trainer)
        return trainer


async def until(true: Callable[[], object], what: str, seconds: float = 60) -> None:
    started = time.monotonic()
    while not true():
        assert time.monotonic() - started < seconds, f"timed out: {what}"
        await asyncio.sleep(0.01)


@contextlib.contextmanager
def broker_process(config: Config) -> Iterator[subprocess.Popen[bytes]]:
    file = layout_of(config).folder / "config.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(config.model_dump_json())
    with subprocess.Popen([sys.executable, "-m", "rhymed", "broker", str(file)]) as process:
        try:
            yield process
        finally:
            process.kill()
