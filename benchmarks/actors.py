"""Emulated workers that use the real protocol over real sockets and answer at once.

A rollout worker writes the same few tokens for every sample to the store, a reward worker a reward of 1, a trainer
counts steps. For benchmarks of the broker, and for its tests.
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

from rhymed.core import messages
from rhymed.core.errors import MalformedMessage, RhymedError
from rhymed.core.tasks import watched
from rhymed.core.wire.keys import OPEN, Keyring
from rhymed.core.wire.sockets import DONE, Client
from rhymed_store.client import NewSample, StoreClient
from rhymed_workers.worker import Membership

TOKENS = np.arange(8, dtype=np.uint32)
LOGPROBS = np.zeros(8, dtype=np.float32)
LOST_AFTER_S = 20.0  # an earlier holder of an actor's name may keep it for so long


class Actor:
    """`async with Rollout(address, store, "rollout-0"): …` joins, sends heartbeats, works, leaves."""

    role: messages.Role
    accepts: Any
    weights = ""  # trainer: address at which it serves them

    def __init__(
        self,
        broker: str,
        store: StoreClient | None,
        name: str,
        slots: int = 16,
        work_s: float = 0.0,
        keys: Keyring = OPEN,
    ) -> None:
        self.name = name
        self.slots = slots
        self.store = store
        self.work_s = work_s
        self.version = -1
        self.holding: dict[messages.SampleId, float] = {}
        self.over = asyncio.Event()
        self.joined = 0  # Join messages sent
        self._address, self._keys = broker, keys
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Any:
        self.link = Client(
            self._address, self.name, peer="broker", accepts=self.accepts, handler=self._handle, keys=self._keys
        )
        self._membership = Membership(self.link, self._join, self._heartbeat, LOST_AFTER_S)
        try:
            welcome = await self.join()
        except BaseException:
            self.link.close()
            raise
        self.start(self._membership.stay(welcome))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.leave()
        self.link.close()

    async def leave(self) -> None:
        """No heartbeat may follow: the broker would not know its sender, which would join again."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._membership.leave(self.name)

    def vanish(self) -> None:
        """As if killed: no message is sent."""
        for task in self._tasks:
            task.cancel()
        self.link.close()

    def start(self, work: Any) -> None:
        watched(work, keep=self._tasks)

    async def join(self) -> messages.Welcome:
        return await self._membership.join()

    async def report(self, message: messages.Message) -> None:
        await self._membership.report(message, f"{self.name} reporting {type(message).__name__}")

    def _join(self) -> messages.Join:
        self.joined += 1
        return messages.Join(
            role=self.role,
            worker=self.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            slots=self.slots,
            version=self.version,
            weights=self.weights,
            holding=list(self.holding),
        )

    def _heartbeat(self) -> messages.Heartbeat:
        now = time.monotonic()
        holding = [messages.Holding(id=id, seconds=now - since) for id, since in self.holding.items()]
        return messages.Heartbeat(worker=self.name, version=self.version, phase="busy", holding=holding)

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
        raise MalformedMessage(f"{self.name} does not accept {type(message).__name__}")

    def hold(self, ids: Sequence[messages.SampleId]) -> None:
        now = time.monotonic()
        self.holding.update(dict.fromkeys(ids, now))


class Rollout(Actor):
    role: messages.Role = "rollout"
    accepts = messages.ToRollout

    def take(self, message: Any) -> None:
        if isinstance(message, messages.LoadVersion):
            self.version = message.version
            self.start(self.report(messages.Loaded(worker=self.name, version=self.version, seconds=0.0)))
        elif isinstance(message, messages.Release):
            released = [id for id in message.samples if self.holding.pop(id, None) is not None]
            self.start(self.report(messages.GiveBack(worker=self.name, samples=released, reason="moved", moved=True)))
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
        await self.report(messages.Generated(worker=self.name, samples=infos))
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
            await self.store.put_scores([score for score in scores if score.reward is not None])
        with contextlib.suppress(RhymedError):
            await self.report(messages.Scored(worker=self.name, scores=scores))
        for id in ids:
            self.holding.pop(id, None)


class Trainer(Actor):
    role: messages.Role = "trainer"
    accepts = messages.ToTrainer
    weights = "ipc:///weights"  # nothing listens there

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.version = 0
        self.steps: list[messages.TrainStep] = []

    def take(self, message: Any) -> None:
        if isinstance(message, messages.TrainStep):
            self.steps.append(message)
            self.start(self.train(message))

    async def train(self, task: messages.TrainStep) -> None:
        await asyncio.sleep(self.work_s)
        self.version = task.step + 1
        await self.report(messages.Trained(worker=self.name, step=task.step, metrics={"reward/mean": 1.0}))
        await self.report(messages.Checkpointed(worker=self.name, step=task.step + 1))
