"""The environment worker: receives samples whose environment has to answer, stores the answers, reports them.

Invariant: a sample is in `_holding` until the broker has acknowledged its answer, its end, or that it is given back.
The next order about it may come before that acknowledgement, and is carried out after it.
Tools and environments run in processes that can be killed (rhymed_workers.environment.pool); what the worker does
with one sample is in `actor`. Store and broker may restart: the worker retries, and joins again.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from typing import Any

from rhymed.core import messages
from rhymed.core.errors import (
    DataError,
    EnvironmentDown,
    EnvironmentFailed,
    EnvironmentLost,
    EnvironmentUnusable,
    UnknownSample,
)
from rhymed.core.service.logfile import cause
from rhymed.core.service.retry import PATIENCE_S, WAITS
from rhymed.core.service.stopwatch import Stopwatch, stats_of
from rhymed.core.text import counted
from rhymed_workers.environment.actor import Actor
from rhymed_workers.environment.pool import Environments
from rhymed_workers.sessions.dialogue import load_dialogue
from rhymed_workers.sessions.programs import Programs
from rhymed_workers.worker import Work, Worker

log = logging.getLogger(__name__)

LOSSES = 5  # times in a row that an environment may be lost through others, before it counts against the sample

REST_S = 2.0
RESOURCE_ERRNOS = {
    getattr(errno, name) for name in ("EMFILE", "ENFILE", "ENOMEM", "EAGAIN", "ENOBUFS", "ENOSPC", "EDQUOT")
}
"""Errors of the operating system that concern this worker and its machine."""


def _lacks_resources(error: OSError | MemoryError) -> bool:
    return isinstance(error, MemoryError) or error.errno in RESOURCE_ERRNOS


class EnvironmentWorker(Worker):
    """`run` raises `EnvironmentFailed` when the user's code cannot be loaded,
    at the start or later."""

    role, accepts = "environment", messages.ToEnvironment

    async def open(self) -> None:
        if self.config.environment.command:
            programs = await self.closing.enter_async_context(Programs(self.config, self.store, self.layout.folder))
            return self.begin(Acting(self, programs, self.config.environment.most_open))
        pool = await self.closing.enter_async_context(Environments(self.config, self.layout.folder))
        dialogue = await asyncio.to_thread(load_dialogue, self.config, pool.about.tools)
        self.begin(Acting(self, Actor(self.config, self.store, pool, dialogue), pool.slots))


class Acting(Work):
    def __init__(self, worker: Worker, actor: Actor | Programs, slots: int) -> None:
        super().__init__(worker)
        self._actor, self._slots = actor, slots
        self._holding: dict[messages.SampleId, float] = {}  # sample -> time at which it was received
        self._reporting: set[messages.SampleId] = set()  # of these, those whose outcome is being reported
        self._again: set[messages.SampleId] = set()  # of these, those that were assigned again meanwhile
        self._seconds = Stopwatch("idle")
        self._answers = self._failures = 0

    async def take(self, message: messages.Act | messages.Close) -> None:
        if isinstance(message, messages.Close):
            for id in message.samples:
                self.spawn(self._actor.close(id))
            return
        fresh = [id for id in message.samples if id not in self._holding]
        self._again |= self._reporting.intersection(message.samples)
        for id in fresh:
            self._act_on(id)
        if fresh:
            count = counted(len(fresh), "sample")
            log.info("takes %s, first %s", count, fresh[0], extra=cause("acting", fresh))

    def _act_on(self, id: messages.SampleId) -> None:
        self._holding[id] = time.monotonic()
        self.spawn(self._act(id))

    def introduce(self) -> dict[str, Any]:
        return {
            "slots": self._slots,
            "holding": list(self._holding),
            "sessions": self.config.environment.most_open,
            "open": self._actor.open,
        }

    def heartbeat(self) -> messages.Heartbeat:
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
            self._act_on(id)

    async def _through_losses(self, id: messages.SampleId) -> messages.SampleInfo | None:
        for _ in range(LOSSES):
            try:
                return await self._when_possible(id)
            except EnvironmentLost as error:
                log.info("%s: sample %s is acted for again: %s", self.name, id, error)
        return await self._when_possible(id)

    async def _when_possible(self, id: messages.SampleId) -> messages.SampleInfo | None:
        """Waits while the worker itself has no files, memory or processes left, which is no failure of a sample.

        Raises `EnvironmentDown` if that lasts: a restarted worker may have them."""
        waiting, since = None, 0.0
        try:
            while True:
                try:
                    return await self._actor.act(id)
                except (OSError, MemoryError) as error:
                    if not _lacks_resources(error):
                        raise
                    if waiting is None:
                        waiting = WAITS.begin("files, memory or processes of this worker", error)
                        since = time.monotonic()
                    WAITS.failed(waiting, error)
                    log.warning("%s: sample %s waits: this worker cannot continue: %s", self.name, id, error)
                    if time.monotonic() > since + PATIENCE_S:
                        raise EnvironmentDown(f"this worker cannot continue: {error}") from None
                await asyncio.sleep(REST_S)
        finally:
            WAITS.end(waiting)

    async def _report(self, id: messages.SampleId, info: messages.SampleInfo | None) -> None:
        made = self._actor.unreported.pop(id, None)
        calls = [made] if made else []
        if info is None:
            answered = messages.Answered(worker=self.name, samples=[id], calls=calls)
            await self.membership.report(answered, "reporting an answer")
            return
        generated = messages.Generated(worker=self.name, samples=[info], calls=calls)
        await self.membership.report(generated, "reporting a complete sample")
        more = cause("stored", [id], tokens=[info.length], turns=[info.turn_count])
        log.info("sample %s is complete: %s in its turns", id, counted(info.length, "token"), extra=more)

    async def _give_back(self, id: messages.SampleId, reason: str, *, retry: bool) -> None:
        self._actor.unreported.pop(id, None)
        log.warning(
            "%s: sample %s given back: %s", self.name, id, reason, extra=cause("returned", [id], reason=reason)
        )
        back = messages.GiveBack(worker=self.name, samples=[id], reason=reason, retry=retry)
        await self.membership.report(back, "giving a sample back")
