"""Typed request/reply over ZeroMQ: what services see of it.

`Server` binds a ROUTER, `Client` connects a DEALER; on an open link either side may ask (`rhymed.wire.link`). Addresses:
`ipc://…`, `tcp://…`, and `inproc://…` between services of one process, which encodes and decodes like the others.
With keys (`rhymed.wire.keys`) every TCP link is locked: CURVE, known keys only, and each role asks what `rhymed.wire.permissions`
says. Only this module, `rhymed.wire.link` and `rhymed.wire.curve` talk to zmq.

Where messages may be lost. A DEALER keeps what it could not send (up to SEND_HWM, then `Overloaded`), also while
the peer restarts; what had already left for a peer that died is gone. So when a connection has ended and there is one
again, a client sends once more what has no answer yet: every request may come twice, and every receiver bears it. A
ROUTER would silently drop for a full or unknown peer; ROUTER_MANDATORY makes both an error.

A peer that connects under the routing id of another takes over its link. That lets a worker come back after a crash.
On a locked link the routing id has a random end that no other peer ever learns, so nobody can be pushed out.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Iterator
from typing import Any

import zmq

from rhymed import errors
from rhymed.messages import Done, Envelope, Message
from rhymed.wire import permissions
from rhymed.wire.addresses import check_open, check_owner, check_port, claim, is_local, is_lockable
from rhymed.wire.curve import DESK, Caller, lock
from rhymed.wire.events import Monitor
from rhymed.wire.keys import OPEN, Keyring, Known
from rhymed.wire.limits import DEAF_S, Police, limits_of, more_files
from rhymed.wire.link import Buffer, Handler, Incoming, Link, Parcel

__all__ = ["DONE", "Buffer", "Client", "Handler", "Parcel", "Server", "drain", "is_local"]

SEND_HWM = 10_000  # messages a peer; a worker has at most a few in flight, so reaching it means the peer is stuck
RECV_HWM = 10_000
MAX_MESSAGE_BYTES = 1 << 30  # of a server's answer; what a server takes is in rhymed.wire.limits
MAX_SOCKETS = 16_384  # of a process: hundreds of workers may live in one, for tests and benchmarks
BACKLOG = 4096  # connections that wait to be accepted: many workers may come at once
HANDSHAKE_MS = 10_000  # then a peer that connected and said nothing is let go
KEEPALIVE = {zmq.TCP_KEEPALIVE: 1, zmq.TCP_KEEPALIVE_IDLE: 15, zmq.TCP_KEEPALIVE_INTVL: 5, zmq.TCP_KEEPALIVE_CNT: 3}
"""Seconds, and tries: the kernel notices a peer that vanished without a word.

ZeroMQ's own heartbeats must not: libzmq 4.3.5 aborts when one is due for a peer that was held back and then hung up.
"""

DONE = Done()


class Server(Link):
    """Binds `address`; peers come and go. `handler` answers their requests."""

    def __init__(self, address: str, accepts: Any, handler: Handler, *, keys: Keyring = OPEN) -> None:
        locked = keys.folder is not None and is_lockable(address)
        limits = limits_of(accepts)
        self._accepts = accepts
        self._known: Known | None = None
        self._domain = b""
        self._police = Police(limits)
        socket = _socket(zmq.ROUTER, address, limits.queued_out, limits.queued_in, limits.frame_bytes)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a worker that reconnects under its name replaces its old link
        socket.setsockopt(zmq.BACKLOG, BACKLOG)
        socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        with _refusing(socket, f"cannot bind {address}"):
            check_open(address, locked=locked, insecure=keys.insecure)
            if locked:
                self._known = keys.known()
                self._domain = lock(socket, keys, self._known)
            if address.startswith("ipc://"):
                claim(address.removeprefix("ipc://"))
            else:
                more_files()
            check_port(address)
            try:
                socket.bind(address)
            except zmq.ZMQError:
                DESK.close(self._domain)
                raise
        self.address = socket.getsockopt_string(zmq.LAST_ENDPOINT)
        super().__init__(socket, accepts, handler)

    async def request(
        self, peer: bytes, message: Message, *frames: Buffer, deadline_s: float, phase: str = ""
    ) -> Parcel:
        """Ask a connected peer. Raises `PeerGone`, `DeadlineExceeded`, or the peer's own error."""
        return await self._ask(peer, peer.decode(errors="replace"), message, frames, deadline_s, phase)

    def notify(self, peer: bytes, message: Message, *frames: Buffer) -> None:
        """Tell a connected peer something that needs no answer."""
        self._send(peer, Envelope(kind="event"), message, frames)

    def close(self) -> None:
        super().close()
        DESK.close(self._domain)

    def _take(self) -> Incoming:
        if self._known is None:
            peer, *parts = self._socket.recv_multipart(zmq.NOBLOCK)
            return Incoming(peer, "", parts)
        head, *frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)  # only frames know whose they are
        key = str(frames[0].get("User-Id")) if frames else ""
        return Incoming(head.bytes, key, [frame.bytes for frame in frames])

    def _listens(self, peer: bytes) -> bool:
        return self._police.listens(peer, time.monotonic())

    def _admit(self, peer: bytes, body: bytes, frames: list[bytes]) -> int:
        arrays = sum(map(len, frames))
        self._police.admit(peer, len(body), arrays, len(frames), time.monotonic())
        return len(body) + arrays

    def _done(self, peer: bytes, size: int) -> None:
        self._police.done(peer, size)

    def _permit(self, key: str, message: Any) -> None:
        if self._known is not None:
            permissions.check(self._accepts, self._known.role(key), message)

    def _blame(self, peer: bytes) -> None:
        if self._police.blame(peer, time.monotonic()):
            self._say(logging.WARNING, "%r sends what cannot be understood: not listened to for %g s", peer, DEAF_S)


class Client(Link):
    """Connects to `address`, now or whenever somebody binds it. `name` must be unique among the server's peers."""

    def __init__(
        self,
        address: str,
        name: str = "",
        *,
        peer: str,
        accepts: Any = None,
        handler: Handler | None = None,
        keys: Keyring = OPEN,
    ) -> None:
        locked = keys.folder is not None and is_lockable(address)
        self.address = address
        self._peer = f"{peer} at {address}"
        self._caller: Caller | Monitor | None = None
        socket = _socket(zmq.DEALER, address, SEND_HWM, RECV_HWM, MAX_MESSAGE_BYTES)
        if locked:
            name = f"{name}#{secrets.token_hex(16)}"
        if name:
            socket.setsockopt(zmq.ROUTING_ID, name.encode())
        socket.setsockopt(zmq.RECONNECT_IVL, 50)  # ms
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        with _refusing(socket, f"cannot connect to {address}"):
            check_open(address, locked=locked, insecure=keys.insecure)
            check_port(address)
            if address.startswith("ipc://"):
                check_owner(address.removeprefix("ipc://"))
            if locked:
                self._caller = Caller(socket, address, keys, self._peer, self._wake, self._lost, self._found)
            else:
                socket.connect(address)
        if not locked and not address.startswith("inproc://"):
            self._caller = Monitor(socket, zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED, self._heard)
        super().__init__(socket, accepts, handler)

    def _heard(self, event: int) -> None:
        if event == zmq.EVENT_DISCONNECTED:
            self._lost()
        else:
            self._found()

    async def request(self, message: Message, *frames: Buffer, deadline_s: float = 30.0, phase: str = "") -> Parcel:
        """Ask the server; again, when the connection was lost and there is a new one.

        Raises `DeadlineExceeded`, `Overloaded`, or the server's own error.
        """
        return await self._ask(b"", self._peer, message, frames, deadline_s, phase)

    def notify(self, message: Message, *frames: Buffer) -> None:
        """Tell the server something that needs no answer."""
        self._send(b"", Envelope(kind="event"), message, frames)

    def close(self) -> None:
        if self._caller is not None:
            self._caller.close()
            self._caller = None
        super().close()


def drain(deadline_s: float = 0.5) -> None:
    """Let what closed sockets have still to send be sent, before a process ends at once."""
    ending = threading.Thread(target=zmq.Context.instance().term, daemon=True)
    ending.start()
    ending.join(deadline_s)


def _socket(kind: int, address: str, queued_out: int, queued_in: int, frame_bytes: int) -> zmq.Socket[bytes]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    context.set(zmq.MAX_SOCKETS, MAX_SOCKETS)  # counts when the context's first socket is made
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
def _refusing(socket: zmq.Socket[bytes], what: str) -> Iterator[None]:
    """A socket that cannot be opened is closed, and the error says which address it was."""
    try:
        yield
    except (zmq.ZMQError, OSError) as error:
        socket.close(linger=0)
        raise errors.AddressRefused(f"{what}: {error}") from None
    except errors.RhymedError:
        socket.close(linger=0)
        raise
