"""The peers of a rollout worker: a broker and a trainer that only record the messages they receive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from rhymed.core import messages
from rhymed.core.config import Config
from rhymed.core.errors import PeerGone, TrainerError
from rhymed.core.run.layout import RunLayout
from rhymed.core.service.host import host_id
from rhymed.core.wire.sockets import DONE, Server
from rhymed.inputs.rows import prompt_id
from rhymed_workers.engines.base import Engine
from rhymed_workers.rollout.worker import RolloutWorker

ROWS = [{"prompt": f"count to {number}"} for number in range(4)]
BAD = {"question": "where is the prompt?"}
NAME = "rollout-0"


def ids(row: dict[str, str] = ROWS[0], step: int = 0, count: int = 4) -> list[messages.SampleId]:
    return [messages.SampleId(step=step, prompt=prompt_id(row), index=index) for index in range(count)]


class RecordingBroker:
    """A broker that knows a worker from its Join on, and keeps every message."""

    def __init__(self, address: str) -> None:
        self.known = False
        self.worker = b""  # its peer
        self.received: list[Any] = []
        self.server = Server(address, messages.ToBroker, self._answer)

    async def _answer(self, peer: bytes, message: Any, frames: Any) -> messages.Message:
        if isinstance(message, messages.Join):
            self.known, self.worker = True, peer
            self.received.append(message)
            return messages.Welcome(run="run", heartbeat_s=0.05, lost_after_s=5, step=0)
        if not self.known:
            raise PeerGone(f"{NAME} is not known here: join first")
        self.received.append(message)
        return DONE

    def all(self, kind: type) -> list[Any]:
        return [message for message in self.received if isinstance(message, kind)]

    @property
    def generated(self) -> dict[messages.SampleId, messages.SampleInfo]:
        return {info.id: info for message in self.all(messages.Generated) for info in message.samples}

    async def ask(self, message: messages.Message) -> None:
        await self.server.request(self.worker, message, deadline_s=60)


class RecordingTrainer:
    """A trainer with a file for every version except the missing ones."""

    def __init__(self, address: str, file: Path) -> None:
        self.missing: set[int] = set()
        self.asked: list[int] = []
        file.write_bytes(b"weights")
        self._file = file
        self.server = Server(address, messages.ToWeights, self._answer)

    async def _answer(self, peer: bytes, message: messages.GetManifest, frames: Any) -> messages.Message:
        self.asked.append(message.version)
        if message.version in self.missing:
            raise TrainerError(f"version {message.version} is not kept")
        return messages.Manifest(
            version=message.version,
            edition="",
            host=host_id(),
            path=str(self._file),
            size=7,
            slice_bytes=7,
        )


async def until(condition: Callable[[], Any], deadline_s: float = 60.0) -> None:
    async with asyncio.timeout(deadline_s):
        while not condition():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def at_work(
    config: Config, where: RunLayout, broker: RecordingBroker, version: int | None = 0, engine: Engine | None = None
) -> AsyncIterator[RolloutWorker]:
    worker = RolloutWorker(config, where, NAME, engine)
    async with worker.running():
        await until(lambda: broker.all(messages.Join))
        if version is not None:
            await broker.ask(messages.LoadVersion(version=version, weights=where.weights))
            await until(lambda: broker.all(messages.Loaded))
        yield worker


def newest_heartbeat(broker: RecordingBroker) -> dict[messages.SampleId, messages.Holding]:
    """What the newest heartbeat says is held."""
    return {item.id: item for item in broker.all(messages.Heartbeat)[-1].holding}
