"""A worker's connections to one server of slices, at most so many, for as long as one download takes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from rhymed import errors
from rhymed.messages import Failure, GetSlice, Slice, Stream
from rhymed_workers.weights.stream.channel import Channel, can_seal, end

log = logging.getLogger(__name__)

T = TypeVar("T")

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
