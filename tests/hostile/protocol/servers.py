"""The real broker and the real store of one run, in this process, over TCP with keys. They can be restarted."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rhymed.core.config import Config
from rhymed.core.errors import AddressRefused
from rhymed.core.run.layout import layout_of
from rhymed.core.service.service import Service
from rhymed_broker.service import BrokerService
from rhymed_store.client import StoreClient
from rhymed_store.service import StoreService
from tests.hostile.protocol.actions import History
from tests.ports import free_ports

PROMPTS, EPOCHS, GROUPS, SIZE = 6, 4, 2, 2  # in the dataset; times that each is taken; of a step; samples of a group
HELD_OUT = 2  # prompts
REFILLS = 2  # groups that a step may replace
STEPS = PROMPTS * EPOCHS // GROUPS
TRIES = 100  # of a server to take its address
PATIENCE_S = 120.0  # for what takes milliseconds on an idle machine


class Servers:
    def __init__(self, config: Config) -> None:
        self.config, self.layout = config, layout_of(config)
        self.broker: BrokerService
        self.store: StoreService
        self.starts = 0  # of this broker's ledger
        self.evaluated = 0  # samples of evaluations that this broker has completed, without dropped ones
        self._running: dict[Service, asyncio.Task[None]] = {}

    async def open(self) -> None:
        await self.open_store()
        await self.open_broker()
        self.auditor = StoreClient(self.layout.store, "auditor", self.layout.keys("broker"))
        self.parts_auditor = StoreClient(self.layout.store, "auditor", self.layout.keys("rollout"))
        self.turns_auditor = StoreClient(self.layout.store, "auditor", self.layout.keys("environment"))

    async def open_store(self) -> None:
        def make() -> StoreService:
            self.store = StoreService(self.config.store, self.layout)
            return self.store

        await self._start(make)

    async def open_broker(self) -> None:
        def make() -> BrokerService:
            self.broker = BrokerService(self.config, self.layout, stays=True)
            self.starts = self.evaluated = 0
            self._count(self.broker.ledger)
            return self.broker

        await self._start(make)

    def _count(self, ledger: Any) -> None:
        """A ledger that starts at another position forgets its samples, and its counters do not.

        So it does with the samples of a complete evaluation.
        """
        reset, forget = ledger.samples.reset, ledger.samples.forget

        def counted(*arguments: Any) -> None:
            self.starts += 1
            reset(*arguments)

        def evaluated(step: int) -> None:
            samples = ledger.samples.open_steps[step].samples.values()
            self.evaluated += sum(sample.state != "dropped" for sample in samples)
            forget(step)

        ledger.samples.reset, ledger.samples.forget = counted, evaluated

    async def _start(self, make: Callable[[], Service]) -> None:
        """Once more while libzmq closes the socket of the server before, which it does in a thread of its own."""
        why: BaseException | None = None
        for _ in range(TRIES):
            try:
                service = make()  # a broker binds when it is made, a store when it opens
                running = asyncio.create_task(service.run())
                await until(partial(_is_decided, service, running), f"{service.name} opens")
                why = running.exception() if running.done() else None
            except AddressRefused as error:
                why = error
            if not isinstance(why, AddressRefused):
                self._running[service] = running
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"a server cannot start: {why!r}")

    async def restart_broker(self) -> None:
        await self._stop(self.broker)
        await self.open_broker()

    async def restart_store(self) -> None:
        await self._stop(self.store)
        await self.open_store()

    async def _stop(self, service: Service) -> None:
        service.stop()
        await self._running.pop(service)

    def failed(self) -> str:
        """Why a server has ended; empty: both work."""
        for service, task in self._running.items():
            if task.done() or service.stopping:
                error = task.exception() if task.done() else service._failure
                return f"{service.name} has ended: {error!r}"
        return ""

    def is_idle(self) -> bool:
        """Everything that arrived is done, and nothing is on its way to anybody."""
        broker, store = self.broker, self.store
        links = (broker.server, broker.store._link, store.server)
        reading = broker._recovery.position is not None
        return not (
            reading
            or broker._pass is not None
            or broker._outbox._writes._unfinished_tasks
            or any(link._pending or link._tasks for link in links)
        )

    async def settle(self) -> None:
        calm = 0

        def rested() -> bool:
            nonlocal calm
            calm = calm + 1 if self.is_idle() else 0
            return calm > 2 or bool(self.failed())

        await until(rested, "the servers are idle", pause_s=0.001)

    async def close(self) -> None:
        if hasattr(self, "parts_auditor"):
            self.auditor.close()
            self.parts_auditor.close()
            self.turns_auditor.close()
        for service in reversed(list(self._running)):
            with contextlib.suppress(Exception):  # reported by `failed`
                await self._stop(service)


def _is_decided(service: Service, running: asyncio.Task[None]) -> bool:
    return service.opened.is_set() or running.done()


def config_of(folder: Path, keys: Path, history: History) -> Config:
    held_out = [{"name": "held", "source": "jsonl", "path": str(_rows(folder, "held", HELD_OUT))}]
    return Config.model_validate(
        {
            "run": {"name": "fuzz", "folder": str(folder / "runs")},
            "data": {"source": "jsonl", "path": str(_rows(folder, "rows", PROMPTS))},
            "eval": {"datasets": held_out, "every": 2} if history.evaluates else {},
            "rollout": {"prompts_per_step": GROUPS, "group_size": SIZE, "engine": "trace"},
            "environment": {"tools": "tools.py:add"} if history.turns else {},
            "reward": {"on_error": "drop"},
            "trainer": {
                "epochs": EPOCHS,
                "dynamic_sampling": {"enabled": history.filters, "max_refills": REFILLS / GROUPS},
            },
            "schedule": {
                "heartbeat_s": 1.0,
                "lost_after_s": 5.0,
                "max_staleness": history.staleness,
                "run_ahead": history.run_ahead,
            },
            "store": {"map_gib": 0.05, "durability": "async"},
            "net": {**_addresses(), "keys": str(keys), "http": ""},
        }
    )


def _rows(folder: Path, name: str, count: int) -> Path:
    rows = folder / f"{name}.jsonl"
    rows.write_text(
        "".join(json.dumps({"prompt": f"{name} {number}", "answer": "1"}) + "\n" for number in range(count))
    )
    return rows


def _addresses() -> dict[str, Any]:
    names = ("broker", "store", "weights")
    return {name: f"tcp://127.0.0.1:{port}" for name, port in zip(names, free_ports(len(names)), strict=True)}


async def until(true: Any, what: str, seconds: float = PATIENCE_S, pause_s: float = 0.002) -> None:
    end = asyncio.get_running_loop().time() + seconds
    while not true():
        assert asyncio.get_running_loop().time() < end, f"timed out: {what}"
        await asyncio.sleep(pause_s)
