"""Connections to the trainer's weights address and to relays, several to each.

One connection is encrypted and copied by one thread of zmq, so a large file needs several. A relay is tried by a
plain connection first: one behind a firewall then costs seconds, and holds up nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
import socket
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from rhymed.core import errors
from rhymed.core.errors import MalformedMessage, PeerGone
from rhymed.core.messages import Failure, GetSlice, GetStream, Message, Slice, Stream
from rhymed.core.tasks import watched
from rhymed.core.wire.keys import Keyring
from rhymed.core.wire.link import Parcel
from rhymed.core.wire.sockets import Client
from rhymed_workers.weights.channel import Channel, can_seal, end
from rhymed_workers.weights.slices import IN_FLIGHT, deadline_s
from rhymed_workers.weights.tracker import TRAINER

# A worker's connections to one server of slices, at most so many, for as long as one download takes.

_answers: msgspec.msgpack.Decoder[Slice | Failure] = msgspec.msgpack.Decoder(Slice | Failure)
_encoder = msgspec.msgpack.Encoder()


class Streams:
    """To the server at `address`. `offer` asks it for a ticket; `reach_s`: until it has accepted a connection."""

    def __init__(
        self,
        address: str,
        offer: Callable[[], Awaitable[Stream]],
        threads: ThreadPoolExecutor,
        *,
        most: int,
        reach_s: float,
    ) -> None:
        self._address, self._offer, self._threads, self._reach_s = address, offer, threads, reach_s
        self._free = asyncio.Semaphore(most)
        self._idle: list[Channel] = []
        self._busy: set[Channel] = set()
        self._reaching: set[socket.socket] = set()
        self._download = 0  # counts calls of `close`
        self._usable = True
        self._worked = False  # slices came that way

    async def use(self, work: Callable[[Channel], T]) -> T | None:
        """What `work` returns, which blocks and runs in a thread. None: this server has no streams for us, or ended
        one; until `close` it is not asked for others, and if none has worked, never again."""
        download = self._download
        async with self._free:
            while self._idle:
                with contextlib.suppress(errors.PeerGone):  # the server closes what was idle for long
                    return await self._run(work, self._idle.pop(), download)
            channel = await self._connect()
            if channel is None:
                return None
            try:
                return await self._run(work, channel, download)
            except errors.PeerGone as error:
                self._give_up(error)
                return None

    def close(self) -> None:
        """All connections end: idle ones, those in use, with their calls, and those that are being made."""
        self._download += 1
        for channel in (*self._idle, *self._busy):
            channel.close()
        for connection in self._reaching:
            end(connection)
        self._idle.clear()
        self._usable |= self._worked

    async def _run(self, work: Callable[[Channel], T], channel: Channel, download: int) -> T:
        self._busy.add(channel)
        try:
            done = await asyncio.get_running_loop().run_in_executor(self._threads, work, channel)
        except BaseException:  # also where we are cancelled: the thread ends with its connection
            channel.close()
            raise
        finally:
            self._busy.discard(channel)
        self._worked = True
        if download == self._download:
            self._idle.append(channel)
        else:  # it has no other owner
            channel.close()
        return done

    async def _connect(self) -> Channel | None:
        if not self._usable:
            return None
        stream = await self._offer()
        host = urlsplit(self._address).hostname or ""
        self._usable = bool(stream.port and host) and (can_seal() or not stream.key)
        if not self._usable:
            return None
        try:
            loop = asyncio.get_running_loop()
            found = await loop.getaddrinfo(host, stream.port, type=socket.SOCK_STREAM)
            return await self._reach(socket.socket(found[0][0], socket.SOCK_STREAM), found[0][4], stream)
        except (OSError, ValueError, OverflowError) as error:  # also an offer with a wrong port or key
            self._give_up(error)
            return None

    async def _reach(self, connection: socket.socket, address: Any, stream: Stream) -> Channel:
        """Owns the connection until it returns. Raises `OSError`, and `ValueError` for a key of a wrong length."""
        self._reaching.add(connection)
        try:
            await asyncio.get_running_loop().run_in_executor(
                self._threads, _connect, connection, address, stream.ticket, self._reach_s
            )
            return Channel(connection, key=stream.key)
        except BaseException:  # also where we are cancelled: the thread ends with its connection
            end(connection)
            raise
        finally:
            self._reaching.discard(connection)

    def _give_up(self, error: Exception) -> None:
        if self._usable:
            log.warning("weights come over %s alone, which is slower: %s", self._address, error)
        self._usable = False


def _connect(connection: socket.socket, address: Any, ticket: bytes, reach_s: float) -> None:
    connection.settimeout(reach_s)
    connection.connect(address)
    connection.sendall(ticket)


def ask(channel: Channel, message: GetSlice, deadline_s: float) -> tuple[Slice, int]:
    """The answer, and the bytes of the content that follows. Blocking. Raises the server's error, or `WireError`.

    `deadline_s`: until the content is complete.
    """
    channel.within(deadline_s)
    channel.send(_encoder.encode(message))
    answer = channel.receive()
    try:
        found = _answers.decode(answer[8:])
    except msgspec.MsgspecError as error:
        raise errors.MalformedMessage(f"answer to GetSlice: {error}") from None
    if isinstance(found, Failure):
        raise errors.by_name(found.error)(found.message)
    return found, int.from_bytes(answer[:8], "big")


log = logging.getLogger(__name__)

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
            self._reached[source] = watched(_try_to_reach(source), functools.partial(log.debug, "%s"))
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
