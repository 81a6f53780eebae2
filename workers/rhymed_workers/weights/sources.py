"""Connections to the trainer's weights address and to relays, several to each.

One connection is encrypted and copied by one thread of zmq, so a large file needs several. A relay is tried by a
plain connection first: one behind a firewall then costs seconds, and holds up nothing else.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar
from urllib.parse import urlsplit

from rhymed.errors import MalformedMessage, PeerGone
from rhymed.messages import GetSlice, GetStream, Message, Slice, Stream
from rhymed.wire.keys import Keyring
from rhymed.wire.link import Parcel
from rhymed.wire.sockets import Client
from rhymed_workers.weights.slices import IN_FLIGHT, deadline_s
from rhymed_workers.weights.stream.channel import Channel
from rhymed_workers.weights.stream.client import Streams
from rhymed_workers.weights.tracker import TRAINER

TRAINER_STREAMS, RELAY_STREAMS = 4, 2
REACH_S = 3.0
OFFER_S = 30.0

T = TypeVar("T")


class Sources:
    """Of one worker; `name` is unique among the peers of all sources."""

    def __init__(self, address: str, name: str, keys: Keyring) -> None:
        self.address, self._name, self._keys = address, name, keys
        self._links: dict[tuple[str, int], Client] = {}
        self._turns: dict[str, Iterator[int]] = {}
        self._reached: dict[str, asyncio.Future[None]] = {}
        self._streams: dict[str, Streams] = {}
        self._threads = ThreadPoolExecutor(IN_FLIGHT, "weights")

    def close(self) -> None:
        self.end_streams()
        self._threads.shutdown(wait=False, cancel_futures=True)
        for link in self._links.values():
            link.close()
        self._links.clear()
        self._reached.clear()

    async def ask(self, message: Message, deadline_s: float) -> Message:
        """A request to the trainer that is not for a slice. Raises its error."""
        answer: Message = (await self._link(TRAINER, 0).request(message, deadline_s=deadline_s)).message
        return answer

    async def stream(self, source: str, work: Callable[[Channel], T]) -> T | None:
        """What `work` returns, which gets a connection for slices, blocks and runs in a thread. None: this source has
        none; use `slice`. Raises what `work` does, `PeerGone`, or the source's error."""
        if source != TRAINER:
            await self._reach(source)
        if source not in self._streams:
            offer = functools.partial(self._offer, source)
            address, most = source or self.address, _streams(source)
            self._streams[source] = Streams(address, offer, self._threads, most=most, reach_s=REACH_S)
        return await self._streams[source].use(work)

    def end_streams(self) -> None:
        """Close all connections for slices; those in use end with an error."""
        for streams in self._streams.values():
            streams.close()

    async def slice(self, source: str, ask: GetSlice, length: int) -> Parcel:
        """`Slice` and one frame. Raises the source's error."""
        if source != TRAINER:
            await self._reach(source)
        stream = next(self._turns.setdefault(source, itertools.cycle(range(_streams(source)))))
        link = self._link(source, stream)
        phase = f"slice {ask.index} of edition {ask.edition}"
        parcel = await link.request(ask, deadline_s=deadline_s(length, source != TRAINER), phase=phase)
        if not isinstance(parcel.message, Slice) or len(parcel.frames) != 1:
            raise MalformedMessage(f"{link.address} did not send {phase}")
        return parcel

    def forget(self, keep: set[str]) -> None:
        """Close the connections to relays that are not in `keep`."""
        for source, stream in list(self._links):
            if source not in keep and source != TRAINER:
                self._links.pop((source, stream)).close()
        self._streams = {source: found for source, found in self._streams.items() if source in (*keep, TRAINER)}
        self._reached = {source: found for source, found in self._reached.items() if source in keep}

    async def _offer(self, source: str) -> Stream:
        link = self._link(source, 0)
        answer = (await link.request(GetStream(), deadline_s=OFFER_S)).message
        if not isinstance(answer, Stream):
            raise MalformedMessage(f"{link.address} answered GetStream with {type(answer).__name__}")
        return answer

    def _link(self, source: str, stream: int) -> Client:
        link = self._links.get((source, stream))
        if link is None:
            relayed = source != TRAINER
            link = self._links[source, stream] = Client(
                source or self.address,
                f"{self._name}/{stream}" if stream else self._name,
                peer="a relay of weights" if relayed else "the trainer's weights",
                keys=self._keys.to("rollout" if relayed else "trainer"),
                resend=not relayed,
                views=True,
            )
        return link

    async def _reach(self, source: str) -> None:
        """Raises `PeerGone`. Tried once, until it is forgotten."""
        if source not in self._reached:
            self._reached[source] = asyncio.ensure_future(_try_to_reach(source))
        await asyncio.shield(self._reached[source])


def _streams(source: str) -> int:
    return TRAINER_STREAMS if source == TRAINER else RELAY_STREAMS


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
