"""A rollout worker's surroundings: a broker and a trainer that only keep what they are told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from rhymed import messages as m
from rhymed.config import Config
from rhymed.data import prompt_id
from rhymed.errors import PeerGone, TrainerError
from rhymed.hosts import host_id
from rhymed.places import Places
from rhymed.wire import DONE, Server
from rhymed_workers.engine import Engine
from rhymed_workers.rollout import RolloutWorker

ROWS = [{"prompt": f"count to {number}"} for number in range(4)]
BAD = {"question": "where is the prompt?"}
NAME = "rollout-0"


def ids(row: dict[str, str] = ROWS[0], step: int = 0, count: int = 4) -> list[m.SampleId]:
    return [m.SampleId(step=step, prompt=prompt_id(row), index=index) for index in range(count)]


class Desk:
    """A broker's front: it knows a worker from its Join on, and keeps every message."""

    def __init__(self, address: str) -> None:
        self.known = False
        self.got: list[Any] = []
        self.server = Server(address, m.ToBroker, self._answer)

    async def _answer(self, peer: bytes, message: Any, frames: Any) -> m.Message:
        if isinstance(message, m.Join):
            self.known = True
            self.got.append(message)
            return m.Welcome(run="run", heartbeat_s=0.05, lost_after_s=5, step=0)
        if not self.known:
            raise PeerGone(f"{NAME} is not known here: join first")
        self.got.append(message)
        return DONE

    def all(self, kind: type) -> list[Any]:
        return [message for message in self.got if isinstance(message, kind)]

    @property
    def generated(self) -> dict[m.SampleId, m.SampleInfo]:
        return {info.id: info for message in self.all(m.Generated) for info in message.samples}

    async def ask(self, message: m.Message) -> None:
        await self.server.request(NAME.encode(), message, deadline_s=60)


class Shelf:
    """A trainer's front: a file for every version but the ones that are missing."""

    def __init__(self, address: str, file: Path) -> None:
        self.missing: set[int] = set()
        self.asked: list[int] = []
        file.write_bytes(b"weights")
        self._file = file
        self.server = Server(address, m.ToWeights, self._answer)

    async def _answer(self, peer: bytes, message: m.GetManifest, frames: Any) -> m.Message:
        self.asked.append(message.version)
        if message.version in self.missing:
            raise TrainerError(f"version {message.version} is not kept")
        return m.Manifest(version=message.version, host=host_id(), path=str(self._file), size=7, digest="")


async def until(condition: Callable[[], Any], deadline_s: float = 60.0) -> None:
    async with asyncio.timeout(deadline_s):
        while not condition():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def at_work(
    config: Config, where: Places, desk: Desk, version: int | None = 0, engine: Engine | None = None
) -> AsyncIterator[RolloutWorker]:
    worker = RolloutWorker(config, where, NAME, engine)
    async with worker.running():
        await until(lambda: desk.all(m.Join))
        if version is not None:
            await desk.ask(m.LoadVersion(version=version, weights=where.weights))
            await until(lambda: desk.all(m.Loaded))
        yield worker


def beat(desk: Desk) -> dict[m.SampleId, m.Holding]:
    """What the newest heartbeat says is held."""
    return {item.id: item for item in desk.all(m.Heartbeat)[-1].holding}
