"""The environment worker: receives samples whose environment has to answer, stores the answers, reports them.

Invariant: a sample is in `_holding` until the broker has acknowledged its answer, its end, or that it is given back.
The next order about it may come before that acknowledgement, and is carried out after it.
Tools and environments run in processes that can be killed (rhymed_workers.environment.pool); what the worker does
with one sample is in `actor`. Store and broker may restart: the worker retries, and joins again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Sequence
from typing import Any

from rhymed import messages
from rhymed.config import Config
from rhymed.errors import (
    DataError,
    EnvironmentDown,
    EnvironmentFailed,
    EnvironmentLost,
    EnvironmentUnusable,
    MalformedMessage,
    UnknownSample,
)
from rhymed.run.layout import RunLayout
from rhymed.service.activities import stats_of
from rhymed.service.logline import cause
from rhymed.service.service import Service
from rhymed.service.stopwatch import Stopwatch
from rhymed.text import counted
from rhymed.wire.sockets import DONE, Client
from rhymed_store.client import StoreClient
from rhymed_store.shards.client import connect
from rhymed_workers.environment.actor import Actor
from rhymed_workers.environment.pool import Environments
from rhymed_workers.membership import member
from rhymed_workers.sessions.dialogue import load_dialogue
from rhymed_workers.sessions.programs import Programs

log = logging.getLogger(__name__)

LOSSES = 5  # times in a row that an environment may be lost through others, before it counts against the sample


class EnvironmentWorker(Service):
    """`name` is unique in the run. `run` raises `EnvironmentFailed` when the user's code cannot be loaded,
    at the start or later."""

    def __init__(self, config: Config, layout: RunLayout, name: str) -> None:
        super().__init__(name)
        self._config, self._layout = config, layout
        self._holding: dict[messages.SampleId, float] = {}  # sample -> time at which it was received
        self._reporting: set[messages.SampleId] = set()  # of these, those whose outcome is being reported
        self._again: set[messages.SampleId] = set()  # of these, those that were assigned again meanwhile
        self._seconds = Stopwatch("idle")
        self._answers = self._failures = 0
        self._closing = contextlib.AsyncExitStack()

    async def open(self) -> None:
        keys = self._layout.keys("environment")
        store = connect(self._layout, self.name, keys)
        self._closing.callback(store.close)
        self._actor = await self._start(store)
        link = Client(
            self._layout.broker,
            self.name,
            peer="broker",
            accepts=messages.ToEnvironment,
            handler=self._handle,
            keys=keys.to("broker"),
        )
        self._closing.callback(link.close)
        self._membership = member(link, self._join, self._heartbeat, self._config, "environment")
        self._closing.push_async_callback(self._membership.leave, self.name)
        self.spawn(self._membership.run())

    async def _start(self, store: StoreClient) -> Actor | Programs:
        if self._config.environment.command:
            self._slots = self._config.environment.most_open
            return await self._closing.enter_async_context(Programs(self._config, store))
        pool = await self._closing.enter_async_context(Environments(self._config))
        self._slots = pool.slots
        dialogue = await asyncio.to_thread(load_dialogue, self._config, pool.about.tools)
        return Actor(self._config, store, pool, dialogue)

    async def close(self) -> None:
        await self._closing.aclose()

    async def _handle(self, peer: bytes, message: Any, frames: Sequence[bytes]) -> messages.Message:
        match message:
            case messages.Act():
                fresh = [id for id in message.samples if id not in self._holding]
                self._again |= self._reporting.intersection(message.samples)
                for id in fresh:
                    self._begin(id)
                if fresh:
                    count = counted(len(fresh), "sample")
                    log.info("takes %s, first %s", count, fresh[0], extra=cause("acting", fresh))
            case messages.Close():
                for id in message.samples:
                    self.spawn(self._actor.close(id))
            case messages.Finish():
                log.info("%s: the run is over: %s", self.name, message.reason)
                self._membership.dismissed()
                self.stop()
            case _:
                raise MalformedMessage(f"an environment worker does not take {type(message).__name__}")
        return DONE

    def _begin(self, id: messages.SampleId) -> None:
        self._holding[id] = time.monotonic()
        self.spawn(self._act(id))

    def _join(self) -> messages.Join:
        return messages.Join(
            role="environment",
            worker=self.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            slots=self._slots,
            holding=list(self._holding),
            sessions=self._config.environment.most_open,
            open=self._actor.open,
        )

    def _heartbeat(self) -> messages.Heartbeat:
        now, actor = time.monotonic(), self._actor
        held = [messages.Holding(id=id, seconds=now - since) for id, since in self._holding.items()]
        stats = {
            "environment/answers": float(self._answers),
            "environment/calls": float(actor.calls),
            "environment/call_errors": float(actor.errors),
            "environment/failures": float(self._failures),
            "environment/rebuilt": float(actor.rebuilt),
            **stats_of("environment", self._seconds.read()),
        }
        return messages.Heartbeat(worker=self.name, phase="act" if held else "idle", holding=held, stats=stats)

    async def _act(self, id: messages.SampleId) -> None:
        try:
            with self._seconds.during("act"):
                info = await self._through_losses(id)
        except (EnvironmentDown, EnvironmentUnusable):
            raise  # it ends the worker: given back, one sample after the other would be dropped for it
        except (EnvironmentFailed, UnknownSample) as error:
            self._failures += 1
            report = self._give_back(id, str(error), retry=True)
        except DataError as error:
            report = self._give_back(id, str(error), retry=False)
        except Exception as error:  # one sample that nobody foresaw must not end the others
            self._failures += 1
            log.exception("%s: sample %s", self.name, id)
            report = self._give_back(id, f"{type(error).__name__}: {error}", retry=True)
        else:
            self._answers += 1
            report = self._report(id, info)
        self._reporting.add(id)
        await report
        self._reporting.discard(id)
        del self._holding[id]
        if id in self._again:
            self._again.discard(id)
            self._begin(id)

    async def _through_losses(self, id: messages.SampleId) -> messages.SampleInfo | None:
        for _ in range(LOSSES):
            try:
                return await self._actor.act(id)
            except EnvironmentLost as error:
                log.info("%s: sample %s is acted for again: %s", self.name, id, error)
        return await self._actor.act(id)

    async def _report(self, id: messages.SampleId, info: messages.SampleInfo | None) -> None:
        made = self._actor.unreported.pop(id, None)
        calls = [made] if made else []
        if info is None:
            answered = messages.Answered(worker=self.name, samples=[id], calls=calls)
            await self._membership.report(answered, "reporting an answer")
            return
        generated = messages.Generated(worker=self.name, samples=[info], calls=calls)
        await self._membership.report(generated, "reporting a complete sample")
        more = cause("stored", [id], tokens=[info.length], turns=[info.turn_count])
        log.info("sample %s is complete: %s in its turns", id, counted(info.length, "token"), extra=more)

    async def _give_back(self, id: messages.SampleId, reason: str, *, retry: bool) -> None:
        self._actor.unreported.pop(id, None)
        log.warning(
            "%s: sample %s given back: %s", self.name, id, reason, extra=cause("returned", [id], reason=reason)
        )
        back = messages.GiveBack(worker=self.name, samples=[id], reason=reason, retry=retry)
        await self._membership.report(back, "giving a sample back")
