"""Connections to the trainer's weights address and to relays, several to each.

One connection is encrypted and copied by one thread of zmq, so a large file needs several. A relay is tried by a
plain connection first: one behind a firewall then costs seconds, and holds up nothing else.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from rhymed.core.errors import MalformedMessage, PeerGone
from rhymed.core.messages import GetSlice, Message, Slice
from rhymed.core.tasks import watched
from rhymed.core.wire.keys import Keyring
from rhymed.core.wire.sockets import Client
from rhymed_workers.weights.slices import deadline_s
from rhymed_workers.weights.tracker import TRAINER

log = logging.getLogger(__name__)

TRAINER_LINKS, RELAY_LINKS = 4, 2
REACH_S = 3.0


class Sources:
    """Of one worker; `name` is unique among the peers of all sources."""

    def __init__(self, address: str, name: str, keys: Keyring) -> None:
        self.address, self._name, self._keys = address, name, keys
        self._links: dict[tuple[str, int], Client] = {}
        self._turns: dict[str, Iterator[int]] = {}
        self._reached: dict[str, asyncio.Future[None]] = {}

    def close(self) -> None:
        for link in self._links.values():
            link.close()
        self._links.clear()
        self._reached.clear()

    async def ask(self, message: Message, deadline_s: float) -> Message:
        """A request to the trainer that is not for a slice. Raises its error."""
        answer: Message = (await self._link(TRAINER, 0).request(message, deadline_s=deadline_s)).message
        return answer

    async def slice(self, source: str, ask: GetSlice, length: int) -> Any:
        """The slice's content, as a buffer. Raises the source's error."""
        if source != TRAINER:
            await self._reach(source)
        links = TRAINER_LINKS if source == TRAINER else RELAY_LINKS
        link = self._link(source, next(self._turns.setdefault(source, itertools.cycle(range(links)))))
        phase = f"slice {ask.index} of edition {ask.edition}"
        parcel = await link.request(ask, deadline_s=deadline_s(length, source != TRAINER), phase=phase)
        if not isinstance(parcel.message, Slice) or len(parcel.frames) != 1:
            raise MalformedMessage(f"{link.address} did not send {phase}")
        return parcel.frames[0]

    def forget(self, keep: set[str]) -> None:
        """Close the connections to relays that are not in `keep`."""
        for source, number in list(self._links):
            if source not in keep and source != TRAINER:
                self._links.pop((source, number)).close()
        self._reached = {source: found for source, found in self._reached.items() if source in keep}

    def _link(self, source: str, number: int) -> Client:
        link = self._links.get((source, number))
        if link is None:
            relayed = source != TRAINER
            link = self._links[source, number] = Client(
                source or self.address,
                f"{self._name}/{number}" if number else self._name,
                peer="a relay of weights" if relayed else "the trainer's weights",
                keys=self._keys.to("rollout" if relayed else "trainer"),
                resend=not relayed,
                views=True,
            )
        return link

    async def _reach(self, source: str) -> None:
        """Raises `PeerGone`. Tried once, until it is forgotten."""
        if source not in self._reached:
            self._reached[source] = watched(_try_to_reach(source), functools.partial(log.debug, "%s"))
        await asyncio.shield(self._reached[source])


async def _try_to_reach(source: str) -> None:
    url = urlsplit(source)
    if url.scheme != "tcp":
        return
    try:
        async with asyncio.timeout(REACH_S):
            _, writer = await asyncio.open_connection(url.hostname, url.port)
        writer.close()
    except (OSError, TimeoutError) as error:
        raise PeerGone(f"the relay at {source} cannot be reached: {error or f'no answer in {REACH_S:g} s'}") from None
