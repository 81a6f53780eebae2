"""Typed request/reply over ZeroMQ: the interface that services use.

`Server` binds a ROUTER, `Client` connects a DEALER; once connected, either side may send requests
(`rhymed.core.wire.link`). Addresses: `ipc://…`, `tcp://…`, and `inproc://…` within one process, which encodes and
decodes like the others. With keys (`rhymed.core.wire.keys`) every TCP link is locked: CURVE, known keys only, and
`rhymed.core.wire.permissions` lists what each role may send.

Where messages can be lost: a DEALER queues what it cannot send (up to SEND_HWM, then `Overloaded`), also while the
peer restarts; messages already sent to a peer that died are gone. After a reconnect a client therefore resends
requests without a reply: every request may arrive twice, and every handler is idempotent. A ROUTER would silently
drop messages to a full or unknown peer; ROUTER_MANDATORY makes both an error.

A peer that connects with another peer's routing id takes over its link, so a client keeps its own when it reconnects.
The id has a random end that no other peer learns, so no link can be taken over; names are the services' affair.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import threading
import time
from collections.abc import Iterator
from typing import Any

import zmq

from rhymed.core import errors
from rhymed.core.messages import Done, Envelope, Message
from rhymed.core.wire import permissions
from rhymed.core.wire.addresses import check_open, check_owner, check_port, claim, is_local, is_lockable, is_removed
from rhymed.core.wire.curve import AUTHENTICATOR, Connector, Monitor, lock
from rhymed.core.wire.keys import OPEN, Keyring, KeyRole
from rhymed.core.wire.limits import IGNORE_S, RateLimiter, limits_of, raise_file_limit
from rhymed.core.wire.link import Buffer, Handler, Incoming, Link, Parcel, name_of

log = logging.getLogger(__name__)

__all__ = ["DONE", "Buffer", "Client", "Handler", "Parcel", "Server", "drain", "is_local"]

SEND_HWM = 10_000  # messages per peer; a worker has a few in flight, so a peer that reaches this is stuck
RECV_HWM = 10_000
MAX_MESSAGE_BYTES = 1 << 30  # of a server's answer; rhymed.core.wire.limits has the limits of requests
MAX_SOCKETS = 16_384  # per process: tests and benchmarks run hundreds of workers in one
VIEW_BYTES = 64 << 10  # smaller frames are copied: a message's body must be bytes
BACKLOG = 4096  # connections waiting to be accepted: many workers may start at once
IO_THREADS = min(4, os.cpu_count() or 1)  # of zmq: connections are copied and encrypted in parallel
LOOK_S = 1.0  # between looks at the file of an ipc socket
HANDSHAKE_MS = 10_000  # then a connection without a handshake is closed
KEEPALIVE = {zmq.TCP_KEEPALIVE: 1, zmq.TCP_KEEPALIVE_IDLE: 15, zmq.TCP_KEEPALIVE_INTVL: 5, zmq.TCP_KEEPALIVE_CNT: 3}
"""Seconds, and tries: the kernel detects a peer that vanished.

ZeroMQ's own heartbeats are off: libzmq 4.3.5 aborts when one is due for a peer that was throttled and then hung up.
"""

DONE = Done()


class Server(Link):
    """Binds `address`; `handler` answers the requests of all peers."""

    def __init__(self, address: str, accepts: Any, handler: Handler, *, keys: Keyring = OPEN) -> None:
        locked = keys.folder is not None and is_lockable(address)
        limits = limits_of(accepts)
        self._accepts = accepts
        self._known: dict[str, KeyRole] | None = None  # public key -> role; None: a link without keys
        self._domain = b""
        self._limiter = RateLimiter(limits)
        socket = _socket(zmq.ROUTER, address, limits.queued_out, limits.queued_in, limits.frame_bytes)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a client that reconnects replaces its old link
        socket.setsockopt(zmq.BACKLOG, BACKLOG)
        socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        with _closing_on_error(socket, f"cannot bind {address}"):
            check_open(address, locked=locked, insecure=keys.insecure)
            check_port(address)
            if locked:
                self._known = keys.known()
                self._domain = lock(socket, keys, self._known)
            if address.startswith("ipc://"):
                claim(address.removeprefix("ipc://"))
            else:
                raise_file_limit()
            try:
                socket.bind(address)
            except zmq.ZMQError:
                AUTHENTICATOR.close(self._domain)
                raise
        self.address = socket.getsockopt_string(zmq.LAST_ENDPOINT)
        super().__init__(socket, accepts, handler)
        self._looking: asyncio.TimerHandle | None = None
        if address.startswith("ipc://") and not address.startswith("ipc://@"):  # an abstract socket has no file
            self._look(address)

    def _look(self, address: str) -> None:
        """Bind an ipc socket again whose file was removed: connected peers stay, but no others could connect.

        The old listener stays too, on a file without a name: zmq would remove the new file with it."""
        self._looking = self._loop.call_later(LOOK_S, self._look, address)
        if is_removed(address):
            try:
                claim(address.removeprefix("ipc://"))
                self._socket.bind(address)
                log.warning("%s was removed from outside of this run: it is bound again", address)
            except (zmq.ZMQError, OSError, errors.AddressRefused) as error:
                self._log(logging.WARNING, "%s was removed and cannot be bound again: %s", address, error)

    async def request(
        self, peer: bytes, message: Message, *frames: Buffer, deadline_s: float, phase: str = ""
    ) -> Parcel:
        """Send a request to a connected peer. Raises `PeerGone`, `DeadlineExceeded`, or the peer's own error."""
        return await self._ask(peer, name_of(peer), message, frames, deadline_s, phase)

    def notify(self, peer: bytes, message: Message, *frames: Buffer) -> None:
        """Send a connected peer an event: no answer."""
        self._send(peer, Envelope(kind="event"), message, frames)

    def is_connected(self, peer: bytes) -> bool:
        """Whether its connection is there; that of a process that died is not. The peer ignores what this sends."""
        try:
            self._send(peer, Envelope(kind="reply"), DONE, ())
        except errors.PeerGone:
            return False
        except errors.Overloaded:
            return True  # it does not read
        return True

    def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
        super().close()
        AUTHENTICATOR.close(self._domain)

    def _recv(self) -> Incoming:
        if self._known is None:
            peer, *parts = self._socket.recv_multipart(zmq.NOBLOCK)
            return Incoming(peer, "", parts)
        head, *frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)  # only frames carry the user id
        key = str(frames[0].get("User-Id")) if frames else ""
        return Incoming(head.bytes, key, [frame.bytes for frame in frames])

    def _ignores(self, peer: bytes) -> bool:
        return self._limiter.ignores(peer, time.monotonic())

    def _admit(self, peer: bytes, body: bytes, frames: list[bytes]) -> int:
        arrays = sum(map(len, frames))
        self._limiter.admit(peer, len(body), arrays, len(frames), time.monotonic())
        return len(body) + arrays

    def _done(self, peer: bytes, size: int) -> None:
        self._limiter.done(peer, size)

    def _permit(self, key: str, message: Any) -> None:
        if self._known is not None:
            permissions.check(self._accepts, self._known[key], message)

    def _penalize(self, peer: bytes) -> None:
        if self._limiter.penalize(peer, time.monotonic()):
            self._log(logging.WARNING, "%r sends invalid messages: ignored for %g s", peer, IGNORE_S)


class Client(Link):
    """Connects to `address`, also if it is bound only later. `name`: for the server's logs.

    `resend=False`: when the connection ends or cannot be made, requests fail with `PeerGone` instead of waiting.
    `views=True`: large frames of answers are memoryviews of zmq's memory, not copies.
    """

    def __init__(
        self,
        address: str,
        name: str = "",
        *,
        peer: str,
        accepts: Any = None,
        handler: Handler | None = None,
        keys: Keyring = OPEN,
        resend: bool = True,
        views: bool = False,
    ) -> None:
        locked = keys.folder is not None and is_lockable(address)
        self.address = address
        self._peer = f"{peer} at {address}"
        self._resend, self._views = resend, views
        self._connection: Connector | Monitor | None = None
        socket = _socket(zmq.DEALER, address, SEND_HWM, RECV_HWM, MAX_MESSAGE_BYTES)
        unique = f"{name}#{secrets.token_hex(16)}"
        socket.setsockopt(zmq.ROUTING_ID, unique.encode())
        socket.setsockopt(zmq.RECONNECT_IVL, 50)  # ms
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        with _closing_on_error(socket, f"cannot connect to {address}"):
            check_open(address, locked=locked, insecure=keys.insecure)
            check_port(address)
            if address.startswith("ipc://"):
                check_owner(address.removeprefix("ipc://"))
            if locked:
                self._connection = Connector(
                    socket, address, keys, self._peer, self._wake, self._disconnected, self._connected, resend
                )
            else:
                socket.connect(address)
        if not locked and not address.startswith("inproc://"):
            ends = zmq.EVENT_DISCONNECTED if resend else zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED
            self._connection = Monitor(socket, ends | zmq.EVENT_HANDSHAKE_SUCCEEDED, self._on_event)
        super().__init__(socket, accepts, handler)

    def _on_event(self, event: int) -> None:
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._connected()
        else:
            self._disconnected()

    def _recv(self) -> Incoming:
        if not self._views:
            return super()._recv()
        frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
        parts: list[Buffer] = [frame.buffer if len(frame) > VIEW_BYTES else frame.bytes for frame in frames]
        return Incoming(b"", "", parts)

    def _disconnected(self) -> None:
        if self._resend:
            super()._disconnected()
        else:
            self._fail_pending(f"{self._peer}: the connection ended")

    async def request(self, message: Message, *frames: Buffer, deadline_s: float = 30.0, phase: str = "") -> Parcel:
        """Send a request to the server, and again after a reconnect. Raises `DeadlineExceeded`, `Overloaded`, or the
        server's own error."""
        return await self._ask(b"", self._peer, message, frames, deadline_s, phase)

    def notify(self, message: Message, *frames: Buffer) -> None:
        """Send the server an event: no answer."""
        self._send(b"", Envelope(kind="event"), message, frames)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        super().close()


def drain(deadline_s: float = 0.5) -> None:
    """Wait until closed sockets have sent their queued messages, before a process exits abruptly."""
    AUTHENTICATOR.stop()
    ending = threading.Thread(target=zmq.Context.instance().term, daemon=True)
    ending.start()
    ending.join(deadline_s)


def _socket(kind: int, address: str, queued_out: int, queued_in: int, frame_bytes: int) -> zmq.Socket[bytes]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    context.set(zmq.MAX_SOCKETS, MAX_SOCKETS)  # both take effect when the context's first socket is made
    context.set(zmq.IO_THREADS, IO_THREADS)
    socket = context.socket(kind)
    socket.setsockopt(zmq.SNDHWM, queued_out)
    socket.setsockopt(zmq.RCVHWM, queued_in)
    socket.setsockopt(zmq.MAXMSGSIZE, frame_bytes)
    socket.setsockopt(zmq.IPV6, 1)
    if address.startswith("tcp://"):
        for option, value in KEEPALIVE.items():
            socket.setsockopt(option, value)
    return socket


@contextlib.contextmanager
def _closing_on_error(socket: zmq.Socket[bytes], failure: str) -> Iterator[None]:
    """Close a socket that cannot be opened, and name its address in the error."""
    try:
        yield
    except (zmq.ZMQError, OSError) as error:
        socket.close(linger=0)
        raise errors.AddressRefused(f"{failure}: {error}") from None
    except errors.RhymedError:
        socket.close(linger=0)
        raise
