"""A broker and a store of a run with keys, on TCP, honest workers, and links with any role's key."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from benchmarks.actors import Actor, Rollout, Trainer
from rhymed.core import messages
from rhymed.core.config import Config
from rhymed.core.errors import RhymedError
from rhymed.core.run.layout import layout_of
from rhymed.core.wire.keys import ROLES, KeyRole, make_keys
from rhymed.core.wire.sockets import DONE, Client
from rhymed_broker.service import BrokerService
from rhymed_store.client import StoreClient
from rhymed_store.service import StoreService
from tests.broker.cluster import small_run, until
from tests.ports import free_ports


class Locked:
    """Broker and store of a run with keys."""

    def __init__(self, config: Config, stack: contextlib.AsyncExitStack) -> None:
        self.where, self._stack = layout_of(config), stack
        self.store_service, self.broker = StoreService(config.store, self.where), BrokerService(config, self.where)

    async def open(self) -> Locked:
        await self._stack.enter_async_context(self.store_service.running())
        await self._stack.enter_async_context(self.broker.running())
        await until(lambda: self.broker._recovery.plan is not None, "the dataset")  # the store knows the run
        return self

    def store(self, role: KeyRole) -> StoreClient:
        client = StoreClient(self.where.store, "thief", self.where.keys(role))
        self._stack.callback(client.close)
        return client

    def link(self, role: KeyRole, server: KeyRole = "broker", accepts: Any = None) -> Client:
        """`accepts`: orders, which are taken and not carried out."""

        async def take(peer: bytes, message: Any, frames: Any) -> messages.Message:
            return DONE

        address, keys = self.where.broker if server == "broker" else self.where.store, self.where.keys(role)
        handler = take if accepts is not None else None
        client = Client(address, "thief", peer=server, keys=keys.to(server), accepts=accepts, handler=handler)
        self._stack.callback(client.close)
        return client

    async def actor(self, kind: type[Actor], name: str, **settings: Any) -> Any:
        role: KeyRole = kind.role
        made = kind(self.where.broker, self.store(role), name, keys=self.where.keys(role), **settings)
        return await self._stack.enter_async_context(made)

    @property
    def counts(self) -> dict[str, int]:
        return self.broker.ledger.samples.counts


@contextlib.asynccontextmanager
async def locked_run(tmp_path: Path, **sections: dict[str, Any]) -> AsyncIterator[Locked]:
    ports = free_ports(2)
    make_keys(tmp_path / "keys", ROLES)
    net = {
        "broker": f"tcp://127.0.0.1:{ports[0]}",
        "store": f"tcp://127.0.0.1:{ports[1]}",
        "keys": str(tmp_path / "keys"),
        "http": "",
    }
    config = small_run(tmp_path, run={"name": "locked"}, net=net, **sections)
    async with contextlib.AsyncExitStack() as stack:
        yield await Locked(config, stack).open()


async def answer(link: Client, message: messages.Message, *frames: Any) -> messages.Message | RhymedError:
    try:
        return (await link.request(message, *frames, deadline_s=60)).message
    except RhymedError as error:
        return error


async def a_run(locked: Locked, **settings: Any) -> tuple[Any, Any]:
    """A trainer and a rollout worker; with `work_s`, it holds the first samples for so long."""
    trainer = await locked.actor(Trainer, "trainer")
    rollout = await locked.actor(Rollout, "rollout-0", **settings)
    if settings:
        await until(lambda: len(rollout.holding) == 8, "work")
    return trainer, rollout


async def ends_whole(locked: Locked, trainer: Any) -> None:
    """The run ends with all of its samples."""
    await asyncio.wait_for(trainer.over.wait(), 60)
    assert [len(step.samples) for step in trainer.steps] == [8, 8, 8]
    assert not locked.counts.get("dropped")
