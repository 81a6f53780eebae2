"""One end of a link: pairs replies with requests and turns every failure into an answer.

Every request has a deadline and ends in exactly one of: a reply, the peer's error under its name, or
`DeadlineExceeded` naming peer and phase. Owns a socket on the event loop; `rhymed.core.wire.sockets` binds or
connects it and decides who may send what.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec
import zmq

from rhymed.core import errors
from rhymed.core.messages import Envelope, Failure, Message, Reply
from rhymed.core.printable import line
from rhymed.core.tasks import watched
from rhymed.core.wire.limits import LogThrottle

log = logging.getLogger(__name__)

BURST = 64  # messages read from a socket before other callbacks of the event loop run

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Errors that msgspec raises for invalid bytes; not all are its own classes."""

Buffer: TypeAlias = Any  # bytes, memoryview or a contiguous numpy array


class Parcel(NamedTuple):
    message: Any
    frames: Sequence[Buffer] = ()


Handler: TypeAlias = Callable[[bytes, Any, Sequence[bytes]], Awaitable[Message | Parcel]]
"""(peer, message, frames) -> answer. The answer to an event is ignored."""

_encoder = msgspec.msgpack.Encoder()
_envelopes = msgspec.msgpack.Decoder(Envelope)
_replies: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


async def _refuse(peer: bytes, message: Any, frames: Sequence[bytes]) -> Message:
    raise errors.MalformedMessage("this end of the link accepts no requests")


def name_of(peer: bytes) -> str:
    """The name under which a peer connected, for people: its routing id without the random end."""
    return line(peer.partition(b"#")[0].decode(errors="replace"), 64)


class Incoming(NamedTuple):
    peer: bytes  # routing id; empty on a client, which has one peer
    key: str  # public key of the connection (Z85); empty on a link without keys
    parts: list[Buffer]  # bytes; large ones may be memoryviews


class PendingRequest(NamedTuple):
    """A request without a reply yet."""

    peer: bytes
    future: asyncio.Future[Parcel]
    envelope: Envelope
    message: Message
    frames: Sequence[Buffer]


class Link:
    """One socket on the event loop: sends at once, receives in bursts, pairs replies with requests."""

    def __init__(self, socket: zmq.Socket[bytes], accepts: Any, handler: Handler | None) -> None:
        self._socket = socket
        self._requests = msgspec.msgpack.Decoder(accepts) if accepts is not None else None
        self._handler = handler or _refuse
        self._pending: dict[int, PendingRequest] = {}
        self._unconfirmed: set[int] = set()  # pending requests that were sent over a connection that has ended
        self._ids = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._wakeup: asyncio.Handle | None = None
        self._closed = False
        self._throttle = LogThrottle()
        self._fd = int(socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._fd, self._drain)
        self._wake()

    # Overridden by servers

    def _recv(self) -> Incoming:
        """The next message. Raises `zmq.Again`."""
        return Incoming(b"", "", self._socket.recv_multipart(zmq.NOBLOCK))

    def _ignores(self, peer: bytes) -> bool:
        return False

    def _admit(self, peer: bytes, body: bytes, frames: list[bytes]) -> int:
        """Check the limits; returns the size in bytes, for `_done`. Raises the error that answers the peer."""
        return 0

    def _done(self, peer: bytes, size: int) -> None:
        """An admitted message is answered."""

    def _permit(self, key: str, message: Any) -> None:
        """Raises `NotAllowed`."""

    def _penalize(self, peer: bytes) -> None:
        """The peer sent an invalid message."""

    # Sending

    async def _ask(
        self, peer: bytes, name: str, message: Message, frames: Sequence[Buffer], deadline_s: float, phase: str
    ) -> Parcel:
        number = next(self._ids)
        future: asyncio.Future[Parcel] = self._loop.create_future()
        envelope = Envelope(kind="request", id=number, deadline_s=deadline_s)
        self._pending[number] = PendingRequest(peer, future, envelope, message, frames)
        try:
            self._send(peer, envelope, message, frames)
            async with asyncio.timeout(deadline_s):
                return await future
        except TimeoutError:
            request = phase or type(message).__name__
            raise errors.DeadlineExceeded(f"{name} did not answer within {deadline_s:g} s ({request})") from None
        finally:
            self._pending.pop(number, None)

    def _send(self, peer: bytes, envelope: Envelope, message: Message, frames: Sequence[Buffer]) -> None:
        if self._closed:
            raise errors.PeerGone("the link is closed")
        parts = [_encoder.encode(envelope), _encoder.encode(message), *frames]
        try:
            self._socket.send_multipart([peer, *parts] if peer else parts, zmq.NOBLOCK, copy=not frames)
        except zmq.Again:
            waiting = int(self._socket.getsockopt(zmq.SNDHWM))
            raise errors.Overloaded(f"{waiting} messages wait for a peer that does not read") from None
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                raise errors.PeerGone(f"{name_of(peer)} is not connected") from None
            raise
        finally:
            self._wake()  # a send that failed has consumed the edge, too

    def _wake(self) -> None:
        # The descriptor is edge-triggered, and any call on the socket may consume the edge: read again soon.
        if self._wakeup is None and not self._closed:
            self._wakeup = self._loop.call_soon(self._drain)

    # Receiving

    def _drain(self) -> None:
        if self._wakeup is not None:
            self._wakeup.cancel()
            self._wakeup = None
        for _ in range(BURST):
            if self._closed:
                return
            try:
                incoming = self._recv()
            except zmq.Again:
                return
            self._receive(incoming)
        self._wake()

    def _receive(self, incoming: Incoming) -> None:
        peer, key, parts = incoming
        if self._ignores(peer):
            return
        try:
            envelope = _envelopes.decode(parts[0])
            body, frames = parts[1], parts[2:]
        except (*UNREADABLE, IndexError) as error:
            self._penalize(peer)
            why = line(str(error))
            self._log(logging.WARNING, "message without a readable envelope from %r ignored: %s", peer, why)
            return
        if envelope.kind == "reply":
            self._settle(peer, envelope, body, frames)
            return
        try:
            size = self._admit(peer, body, frames)
        except errors.WireError as error:
            if isinstance(error, errors.MalformedMessage):
                self._penalize(peer)
            self._reply(peer, envelope, self._failure(peer, envelope, error))
            return
        try:  # before a task is made: an invalid message costs none, and counts before the peer's next one is read
            message = self._decode(peer, body)
            self._permit(key, message)
        except errors.WireError as error:
            self._done(peer, size)
            self._reply(peer, envelope, self._failure(peer, envelope, error))
            return
        watched(self._answer(peer, envelope, message, frames, size), self._unanswered, self._tasks)

    def _unanswered(self, error: BaseException) -> None:
        self._log(logging.ERROR, "a request got no answer", exc_info=error)

    def _settle(self, peer: bytes, envelope: Envelope, body: bytes, frames: list[bytes]) -> None:
        request = self._pending.get(envelope.id)
        if request is None or request.future.done() or request.peer != peer:
            return  # after its deadline, or never requested
        future = request.future
        try:
            reply = _replies.decode(body)
        except UNREADABLE as error:
            future.set_exception(errors.MalformedMessage(f"reply: {line(str(error))}"))
            return
        if isinstance(reply, Failure):
            future.set_exception(errors.by_name(reply.error)(reply.message))
        else:
            future.set_result(Parcel(reply, frames))

    async def _answer(self, peer: bytes, envelope: Envelope, message: Any, frames: list[bytes], size: int) -> None:
        """The service's edge: any exception of the handler becomes an answer; unexpected ones are logged."""
        try:
            answer = await self._handler(peer, message, frames)
        except errors.RhymedError as error:
            answer = self._failure(peer, envelope, error)
        except (Exception, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise  # by this link; else its future was cancelled, and the peer would wait for the answer
            self._log(logging.ERROR, "request from %r failed", peer, exc_info=error)
            answer = Failure(error="RemoteFailure", message=f"{type(error).__name__}: {error}")
        finally:
            self._done(peer, size)
        self._reply(peer, envelope, answer)

    def _failure(self, peer: bytes, envelope: Envelope, error: errors.RhymedError) -> Failure:
        log.debug("%r answered with %s: %s", peer, type(error).__name__, error)
        if isinstance(error, errors.NotAllowed):
            self._log(logging.WARNING, "refused %r: %s", peer, error)
        elif envelope.kind == "event":
            self._log(logging.WARNING, "event from %r: %s", peer, error)
        return Failure(error=type(error).__name__, message=str(error))

    def _reply(self, peer: bytes, envelope: Envelope, answer: Message | Parcel) -> None:
        if envelope.kind == "event":
            return
        message, arrays = answer if isinstance(answer, Parcel) else (answer, ())
        try:
            self._send(peer, Envelope(kind="reply", id=envelope.id), message, arrays)
        except errors.WireError as error:
            self._log(logging.INFO, "answer to %r not delivered: %s", peer, error)

    def _decode(self, peer: bytes, body: bytes) -> Any:
        if self._requests is None:
            raise errors.MalformedMessage("this end of the link accepts no requests")
        try:
            return self._requests.decode(body)
        except UNREADABLE as error:
            self._penalize(peer)
            raise errors.MalformedMessage(f"{line(str(error))} in {body[:80]!r}") from None

    def _log(self, level: int, text: str, *values: Any, exc_info: BaseException | None = None) -> None:
        """Log at most a few lines of a flood."""
        if (suffix := self._throttle.permit(time.monotonic())) is not None:
            log.log(level, text + "%s", *values, suffix, exc_info=exc_info)

    def _disconnected(self) -> None:
        """The connection has ended; requests and replies in transit are lost."""
        self._unconfirmed.update(self._pending)

    def _connected(self) -> None:
        """Reconnected: resend all requests that were in flight. Requests are idempotent."""
        for number in sorted(self._unconfirmed & self._pending.keys()):
            request = self._pending[number]
            with contextlib.suppress(errors.Overloaded):  # then it ends with its deadline
                self._send(request.peer, request.envelope, request.message, request.frames)
        self._unconfirmed.clear()

    def _fail_pending(self, why: str) -> None:
        for request in self._pending.values():
            if not request.future.done():
                request.future.set_exception(errors.PeerGone(why))

    def close(self) -> None:
        """Close the socket; queued messages get 0.2 s to be sent. Open requests end with `PeerGone`."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._fd)
        if self._wakeup is not None:
            self._wakeup.cancel()
        self._fail_pending("the link was closed")
        for task in list(self._tasks):
            if task is not asyncio.current_task():
                task.cancel()
        self._socket.close(linger=200)
