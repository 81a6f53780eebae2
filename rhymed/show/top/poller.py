"""Polls the broker for its queues, one request at a time; only the newest answer is kept.

A broker that does not answer may be restarting: it is asked again, and the screen says for how long it has been
silent. A broker whose socket is gone has ended; a resumed run has its socket at the same path, so polling continues.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

from rhymed.core.errors import RhymedError
from rhymed.core.messages import Drain, GetGroup, Group, Pause
from rhymed.core.run.client import ask
from rhymed.core.run.timeline import Progress
from rhymed.core.wire.addresses import is_removed
from rhymed.core.wire.sockets import Client
from rhymed.show.top.state import Connection, ConnectionState, UiState

log = logging.getLogger(__name__)

DEADLINE_S = 3.0
STEER_S = 5.0
IDLE_POLL_S = 2.0  # between polls after the end


class Poller:
    """`changed` is called after every answer or failure."""

    def __init__(
        self, client: Client, ui: UiState, changed: Callable[[], None], every_s: float, folder: Path | None = None
    ) -> None:
        """`folder`: the run's, if it is on this machine."""
        self._client, self._ui, self._changed = client, ui, changed
        self._every_s, self._folder, self._progress = every_s, folder, Progress()
        self._now = asyncio.Event()
        if not ui.connection.address:
            ui.connection = Connection("waiting", time.monotonic(), client.address)

    async def run(self) -> None:
        while True:
            await self.ask()
            self._changed()
            pause_s = (
                self._every_s if self._ui.connection.state in ("live", "silent") else max(IDLE_POLL_S, self._every_s)
            )
            try:
                async with asyncio.timeout(pause_s):
                    await self._now.wait()
            except TimeoutError:
                pass
            self._now.clear()

    def ask_now(self) -> None:
        self._now.set()

    async def ask(self) -> None:
        ui = self._ui
        if is_removed(ui.connection.address):
            self._set_state("ended")
            return
        worker = ui.worker if ui.view == "worker" else ""
        try:
            queues = await ask(self._client, worker=worker, deadline_s=DEADLINE_S)
            if ui.view == "group":
                await self._ask_group()
        except RhymedError as error:
            log.debug("no answer: %s", error)
            self._set_state("ended" if is_removed(ui.connection.address) else "silent" if ui.queues else "waiting")
            return
        ui.queues = queues
        ui.history.add(queues)
        if self._folder is not None:
            await asyncio.to_thread(self._progress.read, self._folder)
            ui.times = self._progress.times(queues.steps, time.time())
        ui.connection = Connection("finished" if queues.finished else "live", time.monotonic(), ui.connection.address)

    async def _ask_group(self) -> None:
        step, prompt = self._ui.prompt
        group = (await self._client.request(GetGroup(step, prompt), deadline_s=DEADLINE_S)).message
        if not isinstance(group, Group) or (group.step, group.prompt) != self._ui.prompt:
            return
        self._ui.step_done = not group.members
        if group.members or self._ui.group is None:
            self._ui.group = group

    async def steer(self, order: Pause | Drain) -> None:
        """Sends the order; the result becomes the note."""
        try:
            await self._client.request(order, deadline_s=STEER_S)
        except RhymedError as error:
            self._ui.set_note(f"not done: {error}", is_error=True)
        else:
            self._ui.set_note(outcome(order))
        self._changed()
        self.ask_now()

    def _set_state(self, state: ConnectionState) -> None:
        """A finished run stays finished. The time of `silent` counts from the last answer, others from the change."""
        connection = self._ui.connection
        if connection.state == "finished" or connection.state == state:
            return
        since = connection.since if state == "silent" else time.monotonic()
        self._ui.connection = Connection(state, since, connection.address)


def outcome(order: Pause | Drain) -> str:
    """What an order has done, for people."""
    if isinstance(order, Pause):
        return (
            "paused: workers finish what they hold, nothing new is started" if order.paused else "the run continues"
        )
    if order.drained:
        return f"{order.worker} is drained: it gets no new samples"
    return f"{order.worker} gets work again"
