"""Belonging to a run: joining, saying every `heartbeat_s` what is in hand, telling until it is heard, leaving.

A broker that does not know us (any more) is joined again, with what we hold. Knows nothing of what the work is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from rhymed import errors, messages
from rhymed.service.retry import TRANSIENT, retry
from rhymed.wire.sockets import Client

log = logging.getLogger(__name__)

ASK_S = 10.0  # the broker answers at once, or is not there
GOODBYE_S = 1.0


class Membership:
    """`card` makes the Join of this moment, `beat` the Heartbeat; what `beat` raises ends `run`."""

    def __init__(
        self, link: Client, card: Callable[[], messages.Join], beat: Callable[[], messages.Heartbeat]
    ) -> None:
        self._link, self._card, self._beat = link, card, beat
        self._joined = False

    async def run(self) -> None:
        """Until cancelled."""
        welcome = await self.join()
        while True:
            await asyncio.sleep(welcome.heartbeat_s)
            beat = self._beat()
            try:
                await self.ask(beat)
            except TRANSIENT as error:
                log.warning("heartbeat: %s; joining again", error)
                welcome = await self.join()

    async def join(self) -> messages.Welcome:
        async def attempt() -> messages.Welcome:
            answer = await self.ask(self._card())
            if not isinstance(answer, messages.Welcome):
                raise errors.MalformedMessage(f"the broker answered Join with {type(answer).__name__}")
            return answer

        welcome: messages.Welcome = await retry(attempt, "joining the run")
        self._joined = True
        return welcome

    async def ask(self, message: messages.Message) -> Any:
        """The broker's answer. Raises `WireError`, or the broker's own error."""
        return (await self._link.request(message, deadline_s=ASK_S)).message

    async def tell(self, message: messages.Message, what: str) -> None:
        """Until it is acknowledged; a broker that has forgotten us is joined on the way."""

        async def attempt() -> None:
            try:
                await self.ask(message)
            except errors.PeerGone:
                await self.join()
                raise

        await retry(attempt, what)

    def over(self) -> None:
        """The broker has told us to go: it wants no goodbye."""
        self._joined = False

    async def leave(self, worker: str) -> None:
        """What is in hand goes to others. A broker that does not answer will notice."""
        if self._joined:
            self._joined = False
            with contextlib.suppress(errors.RhymedError):
                await self._link.request(messages.Leave(worker=worker), deadline_s=GOODBYE_S)
