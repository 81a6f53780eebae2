"""What every worker is: a service with links to store and broker, and a membership of the run.

`Worker` opens what its `Work` needs, builds that whole, and joins the run with it. Membership is join, heartbeat,
report until acknowledged, leave. A broker that does not know the worker (because it
restarted) is joined again, with the samples that the worker holds. Knows nothing about the work.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import msgspec

from rhymed.core import errors, messages
from rhymed.core.config import Config
from rhymed.core.run.layout import RunLayout
from rhymed.core.service.retry import TRANSIENT, WAITS, ErrorTypes, retry
from rhymed.core.service.service import Service
from rhymed.core.wire.sockets import DONE, Client
from rhymed.placement.usage import UsageMeter, meter
from rhymed_store.client import connect

log = logging.getLogger(__name__)

NAME_PAUSE_S = 2.0
NAME_MARGIN_S = 10.0  # more than `lost_after_s`: the broker looks for lost workers once a second
REQUEST_S = 10.0  # the broker answers at once or not at all
LEAVE_S = 1.0


class Work:
    """What a worker does while it is in the run; made when all that it needs is there."""

    def __init__(self, worker: Worker) -> None:
        self.worker, self.name, self.config = worker, worker.name, worker.config
        self.store, self.membership, self.spawn = worker.store, worker.membership, worker.spawn

    def introduce(self) -> dict[str, Any]:
        """Fields of `Join`: what it can do, and what it has."""
        raise NotImplementedError

    def heartbeat(self) -> messages.Heartbeat:
        raise NotImplementedError

    async def take(self, message: Any) -> None:
        """One of the worker's `accepts`, but for the end of the run."""
        raise NotImplementedError

    def finish(self) -> None:
        """The run is over."""
        self.membership.dismissed()
        self.worker.stop()

    async def drain(self) -> None:
        """See `Service`."""


class Worker(Service):
    """The base of rollout, environment and reward worker and trainer: links to store and broker, and its membership.

    A subclass opens what its work needs, and then joins by `begin`. `name` is unique in the run.
    """

    role: ClassVar[messages.Role]
    accepts: ClassVar[Any]  # messages from the broker
    retry_on: ClassVar[ErrorTypes] = TRANSIENT

    def __init__(self, config: Config, layout: RunLayout, name: str) -> None:
        super().__init__(name)
        keys = layout.keys(self.role)
        self.config, self.layout = config, layout
        self.work: Work | None = None  # since `begin`
        self.store = connect(layout, name, keys)
        self.closing.callback(self.store.close)
        link = Client(
            layout.broker, name, peer="broker", accepts=self.accepts, handler=self._handle, keys=keys.to("broker")
        )
        self.closing.callback(link.close)
        lost_after_s, usage = config.schedule.lost_after_s, meter(config, self.role)
        self.membership = Membership(link, self._join, self._heartbeat, lost_after_s, usage, self.retry_on)

    def begin(self, work: Work) -> None:
        """It is ready for work."""
        self.work = work
        self.closing.push_async_callback(self.membership.leave, self.name)
        self.spawn(self.membership.run())

    @property
    def _begun(self) -> Work:
        assert self.work is not None, "it joins, and hears the broker, when it has begun"
        return self.work

    def _join(self) -> messages.Join:
        return messages.Join(
            role=self.role, worker=self.name, host=socket.gethostname(), pid=os.getpid(), **self._begun.introduce()
        )

    def _heartbeat(self) -> messages.Heartbeat:
        return self._begun.heartbeat()

    async def drain(self) -> None:
        if self.work is not None:
            await self.work.drain()

    async def _handle(self, peer: bytes, message: Any, frames: Sequence[bytes]) -> messages.Message:
        if isinstance(message, messages.Finish):
            log.info("%s: the run is over: %s", self.name, message.reason)
            self._begun.finish()
        else:
            await self._begun.take(message)
        return DONE


class Membership:
    """`join_message` and `heartbeat` describe the worker at the moment of the call; an error of theirs ends `run`.

    Errors of `retry_on` are retried, all others are raised. The trainer retries on every `RhymedError`: it must
    survive whatever the broker answers, because only it has the newest weights, and a trainer that replaces another
    is refused with a plain `WireError` until the other has been silent for a while. `lost_after_s`: of the schedule;
    an earlier holder of our name whose machine vanished without ending its connection has the name for so long.
    """

    def __init__(
        self,
        link: Client,
        join_message: Callable[[], messages.Join],
        heartbeat: Callable[[], messages.Heartbeat],
        lost_after_s: float,
        usage: UsageMeter | None = None,
        retry_on: ErrorTypes = TRANSIENT,
    ) -> None:
        self._usage = usage
        self._link, self._join_message, self._heartbeat = link, join_message, heartbeat
        self._retry_on, self._name_s = retry_on, lost_after_s + NAME_MARGIN_S
        self._joined = False  # or asked to: a Leave of somebody else's name is refused
        self._joining = asyncio.Lock()
        self._welcome: messages.Welcome | None = None  # the last one

    async def run(self) -> None:
        """Join, then send heartbeats until cancelled."""
        await self.stay(await self.join())

    async def stay(self, welcome: messages.Welcome) -> None:
        """Send heartbeats until cancelled."""
        while True:
            await asyncio.sleep(welcome.heartbeat_s)
            usage = self._usage.newest() if self._usage is not None else None
            heartbeat = msgspec.structs.replace(self._heartbeat(), usage=usage, waits=WAITS.longest)
            welcome_before = self._welcome
            try:
                await self._request(heartbeat)
            except self._retry_on as error:
                log.warning("heartbeat: %s; joining again", error)
                welcome = await self._join_again(welcome_before)

    async def join(self) -> messages.Welcome:
        async def attempt() -> messages.Welcome:
            self._joined = True  # for all that we know: who stops before the answer comes may be a member
            answer = await self._request(self._join_message())
            if not isinstance(answer, messages.Welcome):
                raise errors.MalformedMessage(f"the broker answered Join with {type(answer).__name__}")
            return answer

        give_up = time.monotonic() + self._name_s
        for tries in itertools.count(1):
            try:
                welcome: messages.Welcome = await retry(attempt, "joining the run", on=self._retry_on)
                break
            except errors.NameTaken as error:
                if tries > 1 and time.monotonic() > give_up:
                    raise
                log.warning(
                    "joining the run: %s; trying for %.0f s more", error, max(0.0, give_up - time.monotonic())
                )
                await asyncio.sleep(NAME_PAUSE_S)
        self._welcome = welcome
        return welcome

    async def _join_again(self, before: messages.Welcome | None) -> messages.Welcome:
        """Unless another call has joined since `before`: to the broker, a second join without what the first one
        brought is a worker that died with it."""
        async with self._joining:
            return await self.join() if self._welcome is None or self._welcome is before else self._welcome

    async def report(self, message: messages.Message, what: str) -> None:
        """Send until the broker acknowledges; joins a broker that does not know the worker."""

        async def attempt() -> None:
            welcome_before = self._welcome
            try:
                await self._request(message)
            except errors.PeerGone:
                await self._join_again(welcome_before)
                raise

        # A broker accepts no report before its trainer has joined, however long that takes. If the broker is gone,
        # the heartbeats fail after `PATIENCE_S`, which ends the worker.
        await retry(attempt, what, on=self._retry_on, patience_s=math.inf)

    def dismissed(self) -> None:
        """The broker has ended the run: it expects no Leave."""
        self._joined = False

    async def leave(self, worker: str) -> None:
        """Hand the worker's samples back. A broker that does not answer notices the missing heartbeats."""
        if self._joined:
            self._joined = False
            with contextlib.suppress(errors.RhymedError):
                await self._link.request(messages.Leave(worker=worker), deadline_s=LEAVE_S)

    async def _request(self, message: messages.Message) -> Any:
        return (await self._link.request(message, deadline_s=REQUEST_S)).message
