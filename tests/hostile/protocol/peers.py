"""The peers of a history: a worker each, with its own connections, over CURVE. They do nothing by themselves.

Honest ones do their work as the protocol demands it, one message at a time, when the history lets them. Dishonest
ones have a key, and send whatever `fouls` makes for them.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import zmq

from rhymed.core import messages
from rhymed.core.messages import SampleId, SampleInfo
from rhymed.core.run.layout import RunLayout
from rhymed.core.wire.keys import KeyRole
from rhymed.core.wire.sockets import DONE, Client
from rhymed_store.client import NewSample

DEADLINE_S = 60.0  # of every answer; the machine may be busy
SLOTS = 3
ACCEPTS: dict[str, Any] = {
    "rollout": messages.ToRollout,
    "environment": messages.ToEnvironment,
    "reward": messages.ToReward,
    "trainer": messages.ToTrainer,
}


Result: TypeAlias = SampleInfo | messages.Score | None
"""What is reported of a sample; None: its environment has answered."""


class Part(NamedTuple):
    role: KeyRole
    name: str
    honest: bool


CAST = (
    Part("rollout", "rollout-0", True),
    Part("rollout", "rollout-1", True),
    Part("reward", "reward-0", True),
    Part("trainer", "trainer", True),
    Part("rollout", "rollout-x", False),
    Part("reward", "reward-x", False),
    Part("trainer", "trainer-x", False),
    Part("viewer", "viewer", False),
    Part("operator", "operator", False),
    Part("broker", "broker", False),
    Part("store", "store", False),
)
ACTORS = (Part("environment", "environment-0", True), Part("environment", "environment-x", False))
"""Besides these, of histories in turns."""
DISHONEST = [4, 5, 4, 5, 6, 4, 5, 7, 8, 9, 10]  # those that are workers more often
DISHONEST_ACTOR = len(CAST) + 1


def content(id: SampleId, author: str, version: int) -> NewSample:
    """A sample as this author generates it: other authors write other tokens."""
    seed = zlib.crc32(f"{id} {author} {version}".encode())
    length = 1 + seed % 6
    tokens = np.arange(seed % 1000, seed % 1000 + length, dtype=np.uint32)
    info = SampleInfo(id=id, prompt_length=2, length=length, finish_reason="stop", versions=[(version, length)])
    return NewSample(info, np.arange(2, dtype=np.uint32), tokens, np.full(length, -1.0, np.float32))


def reward_of(id: SampleId, author: str, kinds: int = 8) -> float:
    """One of `kinds` numbers."""
    return float(zlib.crc32(f"{id} {author}".encode()) % kinds)


class Peer:
    """One process. What it knows ends with it; its name and key stay."""

    def __init__(self, part: Part, layout: RunLayout, handed: set[SampleId]) -> None:
        """`handed`: samples of which the store has tokens, see `world`."""
        self.role, self.name, self.honest = part
        self._layout, self._handed = layout, handed
        self.untold: set[SampleId] = set()  # of these, those that it was given as if nobody had begun them
        self.here = False  # joined, as far as it knows
        self.lives = 0
        self._broker: Client | None = None
        self._store: Client | None = None
        self.over = False  # the broker reported the end of the run
        self._forget()

    def _forget(self) -> None:
        self.held: dict[SampleId, None] = {}
        self.stored: dict[SampleId, Result] = {}  # acknowledged by the store, not reported
        self.saved: dict[SampleId, int] = {}  # held: tokens that it has written to the store
        self.parked: set[SampleId] = set()  # written to the end, with weights that are too old
        self.released: list[SampleId] = []
        self.task: messages.TrainStep | None = None
        self.last: messages.Message | None = None  # report
        self.target = -1
        self.version = -1

    @property
    def life(self) -> str:
        return f"life-{self.name}-{self.lives}"

    async def handle(self, peer: bytes, message: Any, frames: Sequence[bytes]) -> messages.Message:
        match message:
            case messages.Generate():
                self.held.update(dict.fromkeys(message.samples))
                self.untold |= self._handed & set(message.samples) - set(message.begun)
            case messages.ScoreSamples() | messages.Act():
                self.held.update(dict.fromkeys(message.samples))
            case messages.Cancel():
                for id in message.samples:
                    self.drop(id)
            case messages.Release():
                self.released += [id for id in message.samples if id in self.held]
            case messages.LoadVersion():
                self.target = message.version
            case messages.TrainStep():
                self.task = message
            case messages.Finish():
                self.over = True
        return DONE

    def drop(self, id: SampleId) -> None:
        """It has nothing of this sample any more."""
        self.held.pop(id, None)
        self.saved.pop(id, None)
        self.parked.discard(id)

    def broker(self) -> Client:
        if self._broker is None:
            keys = self._layout.keys(self.role).to("broker")
            accepts = ACCEPTS.get(self.role)
            handler = self.handle if accepts is not None else None
            self._broker = Client(
                self._layout.broker, self.name, peer="broker", accepts=accepts, handler=handler, keys=keys
            )
        return self._broker

    @property
    def routing_id(self) -> bytes:
        """Under which the broker knows this connection; empty: there is none."""
        return self._broker._socket.getsockopt(zmq.ROUTING_ID) if self._broker is not None else b""

    def store(self) -> Client:
        if self._store is None:
            keys = self._layout.keys(self.role).to("store")
            self._store = Client(self._layout.store, self.name, peer="store", keys=keys)
        return self._store

    async def ask(self, message: messages.Message) -> messages.Message:
        """The broker's answer. Raises its error."""
        return (await self.broker().request(message, deadline_s=DEADLINE_S)).message

    def join(self, holding: list[SampleId]) -> messages.Join:
        assert self.role in ACCEPTS
        return messages.Join(
            role=self.role,  # type: ignore[arg-type]
            worker=self.name,
            host="h",
            pid=1 + self.lives,
            slots=SLOTS,
            version=self.version,
            life=self.life if self.role == "trainer" else "",
            weights="tcp://127.0.0.1:1" if self.role == "trainer" else "",
            holding=holding,
        )

    def heartbeat(self) -> messages.Heartbeat:
        holding = [
            messages.Holding(id=id, tokens=1 + self.saved.get(id, 0), parked=id in self.parked)
            for id in [*self.held, *self.stored]
        ]
        return messages.Heartbeat(worker=self.name, version=self.version, phase="busy", holding=holding)

    def vanish(self, *, keeps: bool = False) -> None:
        """As if killed. `keeps`: only its connections end, and it knows what it knew."""
        self.close()
        self.here = False
        if not keeps:
            self.lives += 1
            self._forget()

    def close(self) -> None:
        for link in (self._broker, self._store):
            if link is not None:
                link.close()
        self._broker = self._store = None
