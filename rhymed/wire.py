"""Typed request/reply over ZeroMQ. The only module that knows zmq.

`Server` binds a ROUTER, `Client` connects a DEALER; on an open link either side may ask. Every request has a
deadline and ends in exactly one of: a reply, the peer's error by its name, or `DeadlineExceeded` naming peer and
phase. Addresses: `ipc://…`, `tcp://…`, and `inproc://…` between services of one process, which encodes and decodes
like the others.

Where messages may be lost. A DEALER keeps what it could not send (up to SEND_HWM, then `Overloaded`), also while
the peer restarts; what had already left for a peer that died is gone: the asker's deadline tells it. A ROUTER
would silently drop for a full or unknown peer; ROUTER_MANDATORY makes both an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import itertools
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import urlsplit

import msgspec
import zmq

from rhymed import errors
from rhymed.messages import Done, Envelope, Failure, Message, Reply

log = logging.getLogger(__name__)

SEND_HWM = 10_000  # messages a peer; a worker has at most a few in flight, so reaching it means the peer is stuck
RECV_HWM = 10_000
MAX_MESSAGE_BYTES = 1 << 30
CLAIM_TRIES = 20
BURST = 256  # messages taken from a socket before the event loop gets its turn

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that are not what was agreed: not all of it is its own."""

Buffer: TypeAlias = Any  # bytes, memoryview or a contiguous numpy array


class Parcel(NamedTuple):
    """A message with its raw array frames."""

    message: Any
    frames: Sequence[Buffer] = ()


Handler: TypeAlias = Callable[[bytes, Any, Sequence[bytes]], Awaitable[Message | Parcel]]
"""(peer, message, frames) -> answer. For an event the answer is ignored."""

_encoder = msgspec.msgpack.Encoder()
_envelopes = msgspec.msgpack.Decoder(Envelope)
_replies: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


async def _refuse(peer: bytes, message: Any, frames: Sequence[bytes]) -> Message:
    raise errors.MalformedMessage("this end of the link takes no requests")


class _Link:
    """One socket on the event loop: sends at once, receives in bursts, pairs replies with requests."""

    def __init__(self, socket: zmq.Socket[bytes], accepts: Any, handler: Handler | None) -> None:
        self._socket = socket
        self._requests = msgspec.msgpack.Decoder(accepts) if accepts is not None else None
        self._handler = handler or _refuse
        self._pending: dict[int, tuple[bytes, asyncio.Future[Parcel]]] = {}
        self._ids = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._wakeup: asyncio.Handle | None = None
        self._closed = False
        self._fd = int(socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._fd, self._drain)
        self._wake()

    async def _ask(
        self, peer: bytes, who: str, message: Message, frames: Sequence[Buffer], deadline_s: float, phase: str
    ) -> Parcel:
        number = next(self._ids)
        future: asyncio.Future[Parcel] = self._loop.create_future()
        self._pending[number] = (peer, future)
        try:
            self._send(peer, Envelope(kind="request", id=number, deadline_s=deadline_s), message, frames)
            async with asyncio.timeout(deadline_s):
                return await future
        except TimeoutError:
            what = phase or type(message).__name__
            raise errors.DeadlineExceeded(f"{who} did not answer within {deadline_s:g} s ({what})") from None
        finally:
            self._pending.pop(number, None)

    def _send(self, peer: bytes, envelope: Envelope, message: Message, frames: Sequence[Buffer]) -> None:
        if self._closed:
            raise errors.PeerGone("the link is closed")
        parts = [_encoder.encode(envelope), _encoder.encode(message), *frames]
        try:
            self._socket.send_multipart([peer, *parts] if peer else parts, zmq.NOBLOCK, copy=not frames)
        except zmq.Again:
            raise errors.Overloaded(f"{SEND_HWM} messages wait for a peer that does not read") from None
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                raise errors.PeerGone(f"{peer.decode(errors='replace')} is not connected") from None
            raise
        self._wake()

    def _wake(self) -> None:
        # The descriptor is edge-triggered: any call on the socket may swallow the edge, so look again soon.
        if self._wakeup is None and not self._closed:
            self._wakeup = self._loop.call_soon(self._drain)

    def _drain(self) -> None:
        if self._wakeup is not None:
            self._wakeup.cancel()
            self._wakeup = None
        for _ in range(BURST):
            if self._closed:
                return
            try:
                parts = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._receive(parts)
        self._wake()

    def _split(self, parts: list[bytes]) -> tuple[bytes, list[bytes]]:
        return b"", parts

    def _receive(self, parts: list[bytes]) -> None:
        peer, parts = self._split(parts)
        try:
            envelope = _envelopes.decode(parts[0])
            body, frames = parts[1], parts[2:]
        except (*UNREADABLE, IndexError) as error:
            log.warning("message without a readable envelope from %r ignored: %s", peer, error)
            return
        if envelope.kind == "reply":
            self._settle(peer, envelope, body, frames)
            return
        task = self._loop.create_task(self._answer(peer, envelope, body, frames))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _settle(self, peer: bytes, envelope: Envelope, body: bytes, frames: list[bytes]) -> None:
        asked, future = self._pending.get(envelope.id, (b"", None))
        if future is None or future.done() or asked != peer:
            return  # later than its deadline, or not asked
        try:
            reply = _replies.decode(body)
        except UNREADABLE as error:
            future.set_exception(errors.MalformedMessage(f"reply: {error}"))
            return
        if isinstance(reply, Failure):
            future.set_exception(errors.by_name(reply.error)(reply.message))
        else:
            future.set_result(Parcel(reply, frames))

    async def _answer(self, peer: bytes, envelope: Envelope, body: bytes, frames: list[bytes]) -> None:
        """The service's edge: whatever happens inside becomes an answer, and a traceback in our own log."""
        try:
            answer = await self._handler(peer, self._decode(body), frames)
        except errors.RhymedError as error:
            log.debug("%r answered with %s: %s", peer, type(error).__name__, error)
            answer = Failure(error=type(error).__name__, message=str(error))
            if envelope.kind == "event":
                log.warning("event from %r: %s", peer, error)
        except Exception as error:
            log.exception("request from %r failed", peer)
            answer = Failure(error="RemoteFailure", message=f"{type(error).__name__}: {error}")
        if envelope.kind == "event":
            return
        message, arrays = answer if isinstance(answer, Parcel) else (answer, ())
        try:
            self._send(peer, Envelope(kind="reply", id=envelope.id), message, arrays)
        except errors.WireError as error:
            log.info("answer to %r not delivered: %s", peer, error)

    def _decode(self, body: bytes) -> Any:
        if self._requests is None:
            raise errors.MalformedMessage("this end of the link takes no requests")
        try:
            return self._requests.decode(body)
        except UNREADABLE as error:
            raise errors.MalformedMessage(f"{error} in {body[:80]!r}") from None

    def close(self) -> None:
        """Let go of the socket; what is still to be sent gets 0.2 s. Open requests end with `PeerGone`."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._fd)
        if self._wakeup is not None:
            self._wakeup.cancel()
        for _, future in self._pending.values():
            if not future.done():
                future.set_exception(errors.PeerGone("the link was closed"))
        for task in list(self._tasks):
            if task is not asyncio.current_task():
                task.cancel()
        self._socket.close(linger=200)


class Server(_Link):
    """Binds `address`; peers come and go. `handler` answers their requests."""

    def __init__(self, address: str, accepts: Any, handler: Handler, *, insecure: bool = False) -> None:
        socket = _socket(zmq.ROUTER)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a worker that reconnects under its name replaces its old link
        self.address = _bind(socket, address, insecure)
        super().__init__(socket, accepts, handler)

    def _split(self, parts: list[bytes]) -> tuple[bytes, list[bytes]]:
        return parts[0], parts[1:]

    async def request(
        self, peer: bytes, message: Message, *frames: Buffer, deadline_s: float, phase: str = ""
    ) -> Parcel:
        """Ask a connected peer. Raises `PeerGone`, `DeadlineExceeded`, or the peer's own error."""
        return await self._ask(peer, peer.decode(errors="replace"), message, frames, deadline_s, phase)

    def notify(self, peer: bytes, message: Message, *frames: Buffer) -> None:
        """Tell a connected peer something that needs no answer."""
        self._send(peer, Envelope(kind="event"), message, frames)


class Client(_Link):
    """Connects to `address`, now or whenever somebody binds it. `name` must be unique among the server's peers."""

    def __init__(
        self, address: str, name: str = "", *, peer: str, accepts: Any = None, handler: Handler | None = None
    ) -> None:
        socket = _socket(zmq.DEALER)
        if name:
            socket.setsockopt(zmq.ROUTING_ID, name.encode())
        socket.setsockopt(zmq.RECONNECT_IVL, 50)  # ms
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        _connect(socket, address)
        self.address = address
        self._peer = f"{peer} at {address}"
        super().__init__(socket, accepts, handler)

    async def request(self, message: Message, *frames: Buffer, deadline_s: float = 30.0, phase: str = "") -> Parcel:
        """Ask the server. Raises `DeadlineExceeded`, `Overloaded`, or the server's own error."""
        return await self._ask(b"", self._peer, message, frames, deadline_s, phase)

    def notify(self, message: Message, *frames: Buffer) -> None:
        """Tell the server something that needs no answer."""
        self._send(b"", Envelope(kind="event"), message, frames)


def drain(deadline_s: float = 0.5) -> None:
    """Let what closed sockets have still to send be sent, before a process ends at once."""
    ending = threading.Thread(target=zmq.Context.instance().term, daemon=True)
    ending.start()
    ending.join(deadline_s)


def _socket(kind: int) -> zmq.Socket[bytes]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    socket = context.socket(kind)
    socket.setsockopt(zmq.SNDHWM, SEND_HWM)
    socket.setsockopt(zmq.RCVHWM, RECV_HWM)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
    socket.setsockopt(zmq.IPV6, 1)
    return socket


def _bind(socket: zmq.Socket[bytes], address: str, insecure: bool) -> str:
    with _refusing(socket, f"cannot bind {address}"):
        if not (insecure or is_local(address)):
            raise errors.AddressRefused(f"{address} is open to the network; bind loopback or ipc, or say insecure")
        if address.startswith("ipc://"):
            _claim(address.removeprefix("ipc://"))
        _check_port(address)
        socket.bind(address)
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)


def _connect(socket: zmq.Socket[bytes], address: str) -> None:
    with _refusing(socket, f"cannot connect to {address}"):
        _check_port(address)
        socket.connect(address)


@contextlib.contextmanager
def _refusing(socket: zmq.Socket[bytes], what: str) -> Iterator[None]:
    """A socket whose address is no good is closed, and the error says which address it was."""
    try:
        yield
    except (zmq.ZMQError, OSError) as error:
        socket.close(linger=0)
        raise errors.AddressRefused(f"{what}: {error}") from None
    except errors.AddressRefused:
        socket.close(linger=0)
        raise


def _check_port(address: str) -> None:
    """zmq takes a port modulo 65536 and says nothing."""
    port = address.rpartition(":")[2]
    if address.startswith("tcp://") and port.isdigit() and int(port) > 65535:
        raise errors.AddressRefused(f"{address}: there is no port {port}")


def _claim(path: str) -> None:
    """zmq would silently take over the socket file of a living server; a dead one's file is removed."""
    import socket

    os.makedirs(os.path.dirname(path) or ".", mode=0o700, exist_ok=True)
    if not os.path.exists(path):
        return
    for _ in range(CLAIM_TRIES):
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(path)
            except OSError:
                Path(path).unlink(missing_ok=True)
                return
        time.sleep(0.005)  # a socket that was closed just now listens until zmq's own thread has heard of it
    raise errors.AddressRefused(f"ipc://{path} is served by a living process already")


def is_local(address: str) -> bool:
    """True for ipc, inproc and loopback TCP."""
    url = urlsplit(address)
    if url.scheme in ("ipc", "inproc") or url.hostname == "localhost":
        return True
    try:
        host = ipaddress.ip_address(url.hostname or "")
    except ValueError:
        return False
    mapped = host.ipv4_mapped if isinstance(host, ipaddress.IPv6Address) else None
    return (mapped or host).is_loopback


DONE = Done()
