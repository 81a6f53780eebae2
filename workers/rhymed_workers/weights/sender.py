"""Serves slices on a port of its own, to those that were given a ticket over the link for requests.

Every connection has a thread, which sends; the content comes from the event loop. Knows no files and no digests.

`StreamServer` sends, and `Places` knows who is connected.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError
from urllib.parse import urlsplit

import msgspec

from rhymed.core.errors import MalformedMessage, PeerGone, RhymedError, WireError
from rhymed.core.messages import Failure, GetSlice, Slice, Stream
from rhymed.core.wire.keys import Keyring
from rhymed.core.wire.sockets import Parcel
from rhymed_workers.weights.channel import Channel, can_seal, end
from rhymed_workers.weights.slices import deadline_s

log = logging.getLogger(__name__)

TICKET_BYTES, KEY_BYTES = 16, 32
TICKETS = 1024  # not used yet; beyond that, the oldest is void
TICKET_S = 30.0  # for which it is valid
HELLO_S = 5.0  # until a connection has shown its ticket
IDLE_S = 120.0  # between requests; then the connection is closed
ANSWER_S = 60.0  # until the event loop has found a slice

Answer = Callable[[GetSlice], Awaitable[Parcel]]

_asks = msgspec.msgpack.Decoder(GetSlice)
_encoder = msgspec.msgpack.Encoder()


class StreamServer:
    """Listens on the host of `address`, which is bound already. Create and close it on the event loop.

    `offer` makes a ticket; `Stream.port` is 0 where there are no streams: for addresses within one machine, or with
    keys and without the package cryptography.
    """

    def __init__(self, address: str, answer: Answer, keys: Keyring) -> None:
        self._answer, self._sealed = answer, keys.folder is not None
        self._tickets: dict[bytes, tuple[bytes, float]] = {}  # -> key, valid until
        self._lock = threading.Lock()  # of the tickets
        self.places = Places()
        self._loop = asyncio.get_running_loop()
        self._listener = _listen(address) if can_seal() or not self._sealed else None
        if self._listener is not None:
            threading.Thread(target=self._accept, args=(self._listener,), name="weights-accept", daemon=True).start()

    def offer(self) -> Stream:
        if self._listener is None:
            return Stream()
        now = time.monotonic()
        ticket, key = secrets.token_bytes(TICKET_BYTES), secrets.token_bytes(KEY_BYTES) if self._sealed else b""
        with self._lock:
            old = [one for one, (_, until) in self._tickets.items() if until < now]
            for one in old or list(self._tickets)[: max(0, len(self._tickets) - TICKETS + 1)]:
                del self._tickets[one]
            self._tickets[ticket] = key, now + TICKET_S
        return Stream(port=self._listener.getsockname()[1], ticket=ticket, key=key)

    def close(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # ends `accept`
            listener.close()
        with self._lock:
            self._tickets.clear()
        self.places.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, address = listener.accept()
            except OSError:
                if listener.fileno() < 0:
                    return
                time.sleep(0.1)  # no descriptor is left, for now
                continue
            if not self.places.enter(connection, address[0]):
                connection.close()
                return
            try:
                threading.Thread(target=self._serve, args=(connection,), name="weights-send", daemon=True).start()
            except RuntimeError as error:  # no thread is left, for now
                log.warning("a connection for weights is refused: %s", error)
                self.places.leave(connection)

    def _serve(self, connection: socket.socket) -> None:
        try:
            channel = self._admit(connection)
            while True:
                channel.within(IDLE_S)
                self._send(channel, _asks.decode(channel.receive()))
        except (WireError, msgspec.MsgspecError, OSError) as error:
            log.debug("a connection for weights ended: %s", error)
        finally:
            self.places.leave(connection)

    def _admit(self, connection: socket.socket) -> Channel:
        """Raises `WireError` without a valid ticket, and where there is no place."""
        first = Channel(connection)
        first.within(HELLO_S)
        ticket = bytearray(TICKET_BYTES)
        first.receive_content(memoryview(ticket))
        with self._lock:
            key, until = self._tickets.pop(bytes(ticket), (b"", 0.0))
        if until < time.monotonic():
            raise MalformedMessage("a connection for weights without a valid ticket")
        if not self.places.admit(connection):
            raise PeerGone("a connection for weights has no place")
        return Channel(connection, key=key, server=True)

    def _send(self, channel: Channel, ask: GetSlice) -> None:
        parcel = self._parcel(ask)
        content = memoryview(parcel.frames[0]) if parcel.frames else memoryview(b"")
        channel.within(deadline_s(len(content), False))
        channel.send(len(content).to_bytes(8, "big") + _encoder.encode(parcel.message))
        channel.send_content(content)

    async def _find(self, ask: GetSlice) -> Parcel:
        return await self._answer(ask)

    def _parcel(self, ask: GetSlice) -> Parcel:
        """Of the event loop; any error becomes an answer."""
        work = self._find(ask)
        try:
            parcel = asyncio.run_coroutine_threadsafe(work, self._loop).result(ANSWER_S)
            assert isinstance(parcel.message, Slice), "the answer to GetSlice"
        except RhymedError as error:
            return Parcel(Failure(error=type(error).__name__, message=str(error)))
        except (RuntimeError, CancelledError) as error:
            work.close()
            raise WireError(f"the event loop ends: {error}") from None
        except Exception as error:
            log.exception("slice %d of edition %s failed", ask.index, ask.edition)
            return Parcel(Failure(error="RemoteFailure", message=f"{type(error).__name__}: {error}"))
        return parcel


def _listen(address: str) -> socket.socket | None:
    url = urlsplit(address)
    if url.scheme != "tcp" or not url.hostname:
        return None
    host = url.hostname.removeprefix("::ffff:")  # zmq shows an IPv4 address so
    every = host == "::"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, 0), family=family, backlog=ADMITTED, dualstack_ipv6=every)
    except OSError as error:
        log.warning("weights are sent over %s alone, which is slower: %s", address, error)
        return None


# Who is connected to a server of slices: those with a ticket, and those that have not shown one yet.
#
# Owns the connections from `enter` to `leave`. Those without a ticket take no place of the others. If too many wait,
# the oldest one of the address that has most of them is ended: one address cannot keep the others out.

ADMITTED = 256
WAITING = 128


class Places:
    """Of any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[socket.socket, str] = {}  # -> address; oldest first
        self._admitted: set[socket.socket] = set()
        self._closed = False

    def __len__(self) -> int:
        """Those with a ticket."""
        return len(self._admitted)

    def enter(self, connection: socket.socket, address: str) -> bool:
        """Whether it may wait; False: this is closed."""
        with self._lock:
            if self._closed:
                return False
            if len(self._waiting) >= WAITING:
                [(busiest, _)] = Counter(self._waiting.values()).most_common(1)
                oldest = next(one for one, host in self._waiting.items() if host == busiest)
                del self._waiting[oldest]
                end(oldest)
            self._waiting[connection] = address
            return True

    def admit(self, connection: socket.socket) -> bool:
        """Whether it may stay: it was not ended meanwhile, and there is a place."""
        with self._lock:
            if self._waiting.pop(connection, None) is None or len(self._admitted) >= ADMITTED:
                return False
            self._admitted.add(connection)
            return True

    def leave(self, connection: socket.socket) -> None:
        with self._lock:
            self._waiting.pop(connection, None)
            self._admitted.discard(connection)
        connection.close()

    def close(self) -> None:
        """All are ended, and no other enters any more."""
        with self._lock:
            self._closed = True
            for connection in (*self._waiting, *self._admitted):
                end(connection)
            self._waiting.clear()
            self._admitted.clear()
