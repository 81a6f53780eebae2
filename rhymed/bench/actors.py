"""Workers without work: they speak the real protocol over real sockets and answer at once.

A rollout worker writes the same few tokens for every sample to the store, a reward worker a reward of 1, a trainer
counts. For measuring the broker, and for its tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from rhymed import messages
from rhymed.errors import MalformedMessage, PeerGone, RhymedError
from rhymed.wire.sockets import DONE, Client
from rhymed_store.client import NewSample, StoreClient

TOKENS = np.arange(8, dtype=np.uint32)
LOGPROBS = np.zeros(8, dtype=np.float32)


class Actor:
    """`async with Rollout(address, store, "rollout-0"): …` joins, beats, works, leaves."""

    role: messages.Role
    accepts: Any
    weights = ""  # trainer: where it serves them

    def __init__(
        self, broker: str, store: StoreClient | None, name: str, slots: int = 16, work_s: float = 0.0
    ) -> None:
        self.name = name
        self.slots = slots
        self.store = store
        self.work_s = work_s
        self.version = -1
        self.holding: dict[messages.SampleId, float] = {}
        self.over = asyncio.Event()
        self.joined = 0  # times
        self._address = broker
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Any:
        self.link = Client(self._address, self.name, peer="broker", accepts=self.accepts, handler=self._handle)
        try:
            await self.join()
        except RhymedError:
            self.link.close()
            raise
        self.start(self._beat())
        return self

    async def __aexit__(self, *_: object) -> None:
        with contextlib.suppress(RhymedError):
            await self.leave(deadline_s=0.5)
        self.link.close()

    async def leave(self, deadline_s: float = 5.0) -> None:
        """Not a beat after it: a heartbeat of somebody who is not known would join again."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.link.request(messages.Leave(worker=self.name), deadline_s=deadline_s)

    def vanish(self) -> None:
        """As if killed: without a word."""
        for task in self._tasks:
            task.cancel()
        self.link.close()

    def start(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def join(self) -> None:
        join = messages.Join(
            role=self.role,
            worker=self.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            slots=self.slots,
            version=self.version,
            weights=self.weights,
            holding=list(self.holding),
        )
        self.welcome: messages.Welcome = (await self.link.request(join, deadline_s=30)).message
        self.joined += 1

    async def tell(self, message: messages.Message) -> None:
        """As real workers do: a broker that does not know us is joined, then told again."""
        while True:
            try:
                await self.link.request(message, deadline_s=30)
                return
            except PeerGone:
                await self.join()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self.welcome.heartbeat_s)
            now = time.monotonic()
            holding = [messages.Holding(id=id, seconds=now - since) for id, since in self.holding.items()]
            with contextlib.suppress(RhymedError):
                await self.tell(
                    messages.Heartbeat(worker=self.name, version=self.version, phase="busy", holding=holding)
                )

    async def _handle(self, peer: bytes, message: Any, frames: Sequence[bytes]) -> messages.Message:
        if isinstance(message, messages.Finish):
            self.over.set()
            return DONE
        if isinstance(message, messages.Cancel):
            for id in message.samples:
                self.holding.pop(id, None)
            return DONE
        self.take(message)
        return DONE

    def take(self, message: Any) -> None:
        raise MalformedMessage(f"{self.name} does not take {type(message).__name__}")

    def hold(self, ids: Sequence[messages.SampleId]) -> None:
        now = time.monotonic()
        self.holding.update(dict.fromkeys(ids, now))


class Rollout(Actor):
    role: messages.Role = "rollout"
    accepts = messages.ToRollout

    def take(self, message: Any) -> None:
        if isinstance(message, messages.LoadVersion):
            self.version = message.version
            self.start(self.tell(messages.Loaded(worker=self.name, version=self.version, seconds=0.0)))
        elif isinstance(message, messages.Release):
            released = [id for id in message.samples if self.holding.pop(id, None) is not None]
            self.start(self.tell(messages.GiveBack(worker=self.name, samples=released, reason="moved", moved=True)))
        else:
            self.hold(message.samples)
            self.start(self.generate(message.samples))

    async def generate(self, ids: Sequence[messages.SampleId]) -> None:
        await asyncio.sleep(self.work_s)
        infos = [
            messages.SampleInfo(
                id=id,
                prompt_length=1,
                length=len(TOKENS),
                finish_reason="stop",
                versions=[(self.version, len(TOKENS))],
            )
            for id in ids
            if id in self.holding
        ]
        if self.store is not None:
            await self.store.put_samples([NewSample(info, TOKENS[:1], TOKENS, LOGPROBS) for info in infos])
        await self.tell(messages.Generated(worker=self.name, samples=infos))
        for info in infos:
            self.holding.pop(info.id, None)


class Reward(Actor):
    role: messages.Role = "reward"
    accepts = messages.ToReward

    def take(self, message: Any) -> None:
        self.hold(message.samples)
        self.start(self.score(message.samples))

    def judge(self, id: messages.SampleId) -> messages.Score:
        return messages.Score(id=id, reward=1.0)

    async def score(self, ids: Sequence[messages.SampleId]) -> None:
        await asyncio.sleep(self.work_s)
        scores = [self.judge(id) for id in ids]
        if self.store is not None:
            await self.store.put_scores([score for score in scores if score.error is None])
        with contextlib.suppress(RhymedError):
            await self.tell(messages.Scored(worker=self.name, scores=scores))
        for id in ids:
            self.holding.pop(id, None)


class Trainer(Actor):
    role: messages.Role = "trainer"
    accepts = messages.ToTrainer
    weights = "ipc:///weights"  # nobody is there

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.version = 0
        self.steps: list[messages.TrainStep] = []

    def take(self, message: Any) -> None:
        self.steps.append(message)
        self.start(self.train(message))

    async def train(self, task: messages.TrainStep) -> None:
        await asyncio.sleep(self.work_s)
        self.version = task.step + 1
        await self.tell(messages.Trained(worker=self.name, step=task.step, metrics={"reward/mean": 1.0}))
        await self.tell(messages.Checkpointed(worker=self.name, step=task.step + 1))
