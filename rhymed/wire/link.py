"""One end of a link: pairs replies with requests, and turns whatever goes wrong into an answer.

Every request has a deadline and ends in exactly one of: a reply, the peer's error by its name, or `DeadlineExceeded`
naming peer and phase. Owns a socket on the event loop; how that is bound or connected, and who may ask what, is
`rhymed.wire.sockets`'s.
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

from rhymed import errors
from rhymed.messages import Envelope, Failure, Message, Reply
from rhymed.wire.limits import Hush

log = logging.getLogger(__name__)

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


class Incoming(NamedTuple):
    """A message as it arrived."""

    peer: bytes  # routing id; empty where there is only one peer
    key: str  # that the connection was made with (Z85); empty on a link without keys
    parts: list[bytes]


class Asked(NamedTuple):
    """A request without an answer yet."""

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
        self._pending: dict[int, Asked] = {}
        self._doubtful: set[int] = set()  # of the pending: asked over a connection that has ended
        self._ids = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._wakeup: asyncio.Handle | None = None
        self._closed = False
        self._hush = Hush()
        self._fd = int(socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._fd, self._drain)
        self._wake()

    # What a server does otherwise

    def _take(self) -> Incoming:
        """The next message. Raises `zmq.Again`."""
        return Incoming(b"", "", self._socket.recv_multipart(zmq.NOBLOCK))

    def _listens(self, peer: bytes) -> bool:
        return True

    def _admit(self, peer: bytes, body: bytes, frames: list[bytes]) -> int:
        """Raises what the asker is told when it is too much; the size in bytes, for `_done`."""
        return 0

    def _done(self, peer: bytes, size: int) -> None:
        """An admitted message is answered."""

    def _permit(self, key: str, message: Any) -> None:
        """Raises `NotAllowed`."""

    def _blame(self, peer: bytes) -> None:
        """The peer sent what cannot be understood."""

    # Sending

    async def _ask(
        self, peer: bytes, who: str, message: Message, frames: Sequence[Buffer], deadline_s: float, phase: str
    ) -> Parcel:
        number = next(self._ids)
        future: asyncio.Future[Parcel] = self._loop.create_future()
        envelope = Envelope(kind="request", id=number, deadline_s=deadline_s)
        self._pending[number] = Asked(peer, future, envelope, message, frames)
        try:
            self._send(peer, envelope, message, frames)
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
            waiting = int(self._socket.getsockopt(zmq.SNDHWM))
            raise errors.Overloaded(f"{waiting} messages wait for a peer that does not read") from None
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                raise errors.PeerGone(f"{peer.decode(errors='replace')} is not connected") from None
            raise
        self._wake()

    def _wake(self) -> None:
        # The descriptor is edge-triggered: any call on the socket may swallow the edge, so look again soon.
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
                incoming = self._take()
            except zmq.Again:
                return
            self._receive(incoming)
        self._wake()

    def _receive(self, incoming: Incoming) -> None:
        peer, key, parts = incoming
        if not self._listens(peer):
            return
        try:
            envelope = _envelopes.decode(parts[0])
            body, frames = parts[1], parts[2:]
        except (*UNREADABLE, IndexError) as error:
            self._blame(peer)
            self._say(logging.WARNING, "message without a readable envelope from %r ignored: %s", peer, error)
            return
        if envelope.kind == "reply":
            self._settle(peer, envelope, body, frames)
            return
        try:
            size = self._admit(peer, body, frames)
        except errors.WireError as error:
            if isinstance(error, errors.MalformedMessage):
                self._blame(peer)
            self._reply(peer, envelope, self._failure(peer, envelope, error))
            return
        try:  # here and not in the task: who sends nonsense costs no task, and is noticed before its next message
            message = self._decode(peer, body)
            self._permit(key, message)
        except errors.WireError as error:
            self._done(peer, size)
            self._reply(peer, envelope, self._failure(peer, envelope, error))
            return
        task = self._loop.create_task(self._answer(peer, envelope, message, frames, size))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _settle(self, peer: bytes, envelope: Envelope, body: bytes, frames: list[bytes]) -> None:
        asked = self._pending.get(envelope.id)
        if asked is None or asked.future.done() or asked.peer != peer:
            return  # later than its deadline, or not asked
        future = asked.future
        try:
            reply = _replies.decode(body)
        except UNREADABLE as error:
            future.set_exception(errors.MalformedMessage(f"reply: {error}"))
            return
        if isinstance(reply, Failure):
            future.set_exception(errors.by_name(reply.error)(reply.message))
        else:
            future.set_result(Parcel(reply, frames))

    async def _answer(self, peer: bytes, envelope: Envelope, message: Any, frames: list[bytes], size: int) -> None:
        """The service's edge: whatever happens inside becomes an answer, and a traceback in our own log."""
        try:
            answer = await self._handler(peer, message, frames)
        except errors.RhymedError as error:
            answer = self._failure(peer, envelope, error)
        except Exception as error:
            self._say(logging.ERROR, "request from %r failed", peer, exc_info=error)
            answer = Failure(error="RemoteFailure", message=f"{type(error).__name__}: {error}")
        finally:
            self._done(peer, size)
        self._reply(peer, envelope, answer)

    def _failure(self, peer: bytes, envelope: Envelope, error: errors.RhymedError) -> Failure:
        log.debug("%r answered with %s: %s", peer, type(error).__name__, error)
        if isinstance(error, errors.NotAllowed):
            self._say(logging.WARNING, "refused %r: %s", peer, error)
        elif envelope.kind == "event":
            self._say(logging.WARNING, "event from %r: %s", peer, error)
        return Failure(error=type(error).__name__, message=str(error))

    def _reply(self, peer: bytes, envelope: Envelope, answer: Message | Parcel) -> None:
        if envelope.kind == "event":
            return
        message, arrays = answer if isinstance(answer, Parcel) else (answer, ())
        try:
            self._send(peer, Envelope(kind="reply", id=envelope.id), message, arrays)
        except errors.WireError as error:
            self._say(logging.INFO, "answer to %r not delivered: %s", peer, error)

    def _decode(self, peer: bytes, body: bytes) -> Any:
        if self._requests is None:
            raise errors.MalformedMessage("this end of the link takes no requests")
        try:
            return self._requests.decode(body)
        except UNREADABLE as error:
            self._blame(peer)
            raise errors.MalformedMessage(f"{error} in {body[:80]!r}") from None

    def _say(self, level: int, text: str, *values: Any, exc_info: BaseException | None = None) -> None:
        """To the log, but no more than a few lines of a flood."""
        if (more := self._hush.may(time.monotonic())) is not None:
            log.log(level, text + "%s", *values, more, exc_info=exc_info)

    def _lost(self) -> None:
        """The connection has ended, and with it every question and answer that was on its way."""
        self._doubtful.update(self._pending)

    def _found(self) -> None:
        """There is a connection again: what nobody can answer any more is asked anew; twice does no harm."""
        for number in sorted(self._doubtful & self._pending.keys()):
            asked = self._pending[number]
            with contextlib.suppress(errors.Overloaded):  # then the deadline tells
                self._send(asked.peer, asked.envelope, asked.message, asked.frames)
        self._doubtful.clear()

    def close(self) -> None:
        """Let go of the socket; what is still to be sent gets 0.2 s. Open requests end with `PeerGone`."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._fd)
        if self._wakeup is not None:
            self._wakeup.cancel()
        for asked in self._pending.values():
            if not asked.future.done():
                asked.future.set_exception(errors.PeerGone("the link was closed"))
        for task in list(self._tasks):
            if task is not asyncio.current_task():
                task.cancel()
        self._socket.close(linger=200)
