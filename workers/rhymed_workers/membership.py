"""A worker's membership of a run: join, heartbeat, report until acknowledged, leave. The same for every role.

A broker that does not know the worker (because it restarted) is joined again, with the samples that the worker holds.
Knows nothing about the work.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any

import msgspec

from rhymed import errors, messages
from rhymed.config import Config
from rhymed.service.retry import TRANSIENT, WAITS, ErrorTypes, retry
from rhymed.usage.meter import UsageMeter, meter
from rhymed.wire.sockets import Client

log = logging.getLogger(__name__)

NAME_PAUSE_S = 2.0
NAME_MARGIN_S = 10.0  # more than `lost_after_s`: the broker looks for lost workers once a second
REQUEST_S = 10.0  # the broker answers at once or not at all
LEAVE_S = 1.0


def member(
    link: Client,
    join_message: Callable[[], messages.Join],
    heartbeat: Callable[[], messages.Heartbeat],
    config: Config,
    role: messages.Role,
    retry_on: ErrorTypes = TRANSIENT,
) -> Membership:
    """Of a worker with this configuration."""
    usage = meter(config, role)
    return Membership(link, join_message, heartbeat, config.schedule.lost_after_s, usage, retry_on)


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
        self._joined = False

    async def run(self) -> None:
        """Join, then send heartbeats until cancelled."""
        await self.stay(await self.join())

    async def stay(self, welcome: messages.Welcome) -> None:
        """Send heartbeats until cancelled."""
        while True:
            await asyncio.sleep(welcome.heartbeat_s)
            usage = self._usage.newest() if self._usage is not None else None
            heartbeat = msgspec.structs.replace(self._heartbeat(), usage=usage, waits=WAITS.longest)
            try:
                await self._request(heartbeat)
            except self._retry_on as error:
                log.warning("heartbeat: %s; joining again", error)
                welcome = await self.join()

    async def join(self) -> messages.Welcome:
        async def attempt() -> messages.Welcome:
            answer = await self._request(self._join_message())
            if not isinstance(answer, messages.Welcome):
                raise errors.MalformedMessage(f"the broker answered Join with {type(answer).__name__}")
            return answer

        give_up = time.monotonic() + self._name_s
        while True:
            try:
                welcome: messages.Welcome = await retry(attempt, "joining the run", on=self._retry_on)
                break
            except errors.NameTaken as error:
                if time.monotonic() > give_up:
                    raise
                log.warning("joining the run: %s; trying for %.0f s more", error, give_up - time.monotonic())
                await asyncio.sleep(NAME_PAUSE_S)
        self._joined = True
        return welcome

    async def report(self, message: messages.Message, what: str) -> None:
        """Send until the broker acknowledges; joins a broker that does not know the worker."""

        async def attempt() -> None:
            try:
                await self._request(message)
            except errors.PeerGone:
                await self.join()
                raise

        await retry(attempt, what, on=self._retry_on)

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
