"""Asks the broker for its queues, one question at a time: there is no queue of answers, the newest is all there is.

A broker that does not answer may be starting again: it is asked on, and the picture says for how long. One whose
socket is gone has ended; a run that is resumed has its socket in the same place, so that is looked at, too.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from rhymed.errors import RhymedError
from rhymed.messages import Drain, GetGroup, Group, Pause
from rhymed.run.client import ask
from rhymed.top.state import Link, Look, State
from rhymed.wire.addresses import is_removed
from rhymed.wire.sockets import Client

log = logging.getLogger(__name__)

DEADLINE_S = 3.0
STEER_S = 5.0
SLOWLY_S = 2.0  # between two looks after the end


class Poller:
    """`changed` is called after every answer, and when there was none."""

    def __init__(self, client: Client, look: Look, changed: Callable[[], None], every_s: float) -> None:
        self._client, self._look, self._changed = client, look, changed
        self._every_s = every_s
        self._now = asyncio.Event()
        if not look.link.address:
            look.link = Link("waiting", time.monotonic(), client.address)

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await self.ask()
            self._changed()
            pause_s = self._every_s if self._look.link.state in ("live", "silent") else max(SLOWLY_S, self._every_s)
            try:
                async with asyncio.timeout(pause_s):
                    await self._now.wait()
            except TimeoutError:
                pass
            self._now.clear()

    def soon(self) -> None:
        """Ask without waiting for the time to come."""
        self._now.set()

    async def ask(self) -> None:
        look = self._look
        if is_removed(look.link.address):
            self._turn("ended")
            return
        worker = look.worker if look.view == "worker" else ""
        try:
            queues = await ask(self._client, worker=worker, deadline_s=DEADLINE_S)
            if look.view == "group":
                await self._ask_group()
        except RhymedError as error:
            log.debug("no answer: %s", error)
            self._turn("ended" if is_removed(look.link.address) else "silent" if look.queues else "waiting")
            return
        look.queues = queues
        look.history.add(queues)
        look.link = Link("finished" if queues.finished else "live", time.monotonic(), look.link.address)

    async def _ask_group(self) -> None:
        step, prompt = self._look.prompt
        answer = await self._client.request(GetGroup(step, prompt), deadline_s=DEADLINE_S)
        group = answer.message
        if not isinstance(group, Group) or (group.step, group.prompt) != self._look.prompt:
            return
        self._look.past = not group.members
        if group.members or self._look.group is None:
            self._look.group = group

    async def steer(self, order: Pause | Drain) -> None:
        """Says in the look what came of it."""
        try:
            await self._client.request(order, deadline_s=STEER_S)
        except RhymedError as error:
            self._look.say(f"not done: {error}", wrong=True)
        else:
            self._look.say(done(order))
        self._changed()
        self.soon()

    def _turn(self, state: State) -> None:
        """What is finished stays so; of the others the time counts from the last answer, or from the change."""
        link = self._look.link
        if link.state == "finished" or link.state == state:
            return
        since = link.since if state == "silent" else time.monotonic()
        self._look.link = Link(state, since, link.address)


def done(order: Pause | Drain) -> str:
    """What an order that was carried out has done, in words."""
    if isinstance(order, Pause):
        return "paused: what workers have is finished, nothing new is begun" if order.paused else "the run goes on"
    if order.drained:
        return f"{order.worker} is drained: it gets nothing new"
    return f"{order.worker} gets work again"
