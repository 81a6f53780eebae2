"""CURVE: who may connect to a locked server. Both ends of the handshake.

Server: libzmq asks the process's `Authenticator` (ZAP, RFC 27) whether a key is known. A connection with another key
is refused before it can send a message; otherwise every message of the connection carries the key.
Client: `Connector` connects only to a server with the pinned key.
Knows zmq, but no messages.

`Monitor` watches a socket's connection events.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Container, Iterator

import zmq
from zmq.auth.asyncio import AsyncioAuthenticator
from zmq.utils.monitor import parse_monitor_message

from rhymed.core.errors import ConfigError
from rhymed.core.wire.keys import Keyring
from rhymed.core.wire.limits import LogThrottle

log = logging.getLogger(__name__)

ZAP = "inproc://zeromq.zap.01"
PAUSE_S = 1.0  # before the next attempt of a refused client, or of a failed authenticator
FAILURES = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)


class Authenticator(AsyncioAuthenticator):
    """Answers libzmq for all locked servers of this process, on the event loop of the first; one domain per server.

    pyzmq's task would end silently with the first exception, and no connection would open any more. Here a task that
    fails is logged and started again.
    """

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[str, Container[str]] = {}  # domain -> keys that may connect to that server
        self._numbers = itertools.count(1)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._serving: asyncio.Task[None] | None = None
        self._peer_ip = ""  # of the connection that is being authenticated
        self._throttle = LogThrottle()

    def open(self, known: Container[str]) -> bytes:
        """Accept connections with these keys; returns the domain for the server's socket."""
        if self._loop is None or self._loop.is_closed():
            self.stop()
            self.start()
        domain = str(next(self._numbers))
        self._known[domain] = known
        self.configure_curve_callback(domain, self)
        return domain.encode()

    def close(self, domain: bytes) -> None:
        """The authenticator keeps running: its delayed cleanup could remove the reader of a new one on this loop."""
        self._known.pop(domain.decode(), None)
        self.credentials_providers.pop(domain.decode(), None)

    def start(self) -> None:
        self.context = zmq.Context.instance()
        self._loop = asyncio.get_running_loop()
        before = asyncio.all_tasks()
        super().start()
        (self._serving,) = asyncio.all_tasks() - before
        self._serving.add_done_callback(self._ended)

    def stop(self) -> None:
        if self.zap_socket is not None:
            self.zap_socket.unbind(ZAP)  # frees the address at once; closing alone frees it some time later
        self._loop = self._serving = None
        try:
            super().stop()
        except RuntimeError:  # its loop was closed while the task was pending
            super(AsyncioAuthenticator, self).stop()

    async def handle_zap_message(self, msg: list[bytes]) -> None:
        self._peer_ip = msg[3].decode(errors="replace") if len(msg) > 3 else ""
        await super().handle_zap_message(msg)

    def callback(self, domain: str, key: bytes) -> bool:
        """pyzmq's question: may a connection with this key (Z85) open? If so, the key becomes its user id."""
        if key.decode() in self._known.get(domain, ()):
            return True
        if (suffix := self._throttle.permit(time.monotonic())) is not None:
            log.warning("unknown key %s... from %s refused%s", key[:8].decode(), self._peer_ip, suffix)
        return False

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or self._loop is None:
            return
        log.error("the authenticator failed and is started again", exc_info=task.exception())
        self._loop.call_later(PAUSE_S, self._restart, task)

    def _restart(self, failed: asyncio.Task[None]) -> None:
        if self._serving is failed:
            self.stop()
            self.start()


AUTHENTICATOR = Authenticator()


def lock(socket: zmq.Socket[bytes], keys: Keyring, known: Container[str]) -> bytes:
    """Make this socket, before it is bound, a CURVE server for known keys only; the domain, for `close`."""
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.own_public())
    socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret())
    domain = AUTHENTICATOR.open(known)
    socket.setsockopt(zmq.ZAP_DOMAIN, domain)
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without an answer from the authenticator nothing connects
    return domain


class Connector:
    """Keeps a socket connected to a locked server: after a refusal it reads the keys again and retries."""

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        address: str,
        keys: Keyring,
        server: str,
        on_use: Callable[[], None],
        on_disconnect: Callable[[], None],
        on_connect: Callable[[], None],
        patient: bool = True,
    ) -> None:
        """`server` names the peer in log lines. `on_use` is called after each use of the socket, see `Link`.
        `patient=False`: a connection that cannot be made counts as one that ended."""
        self._socket, self._address, self._keys, self._server = socket, address, keys, server
        self._on_use, self._on_disconnect, self._on_connect = on_use, on_disconnect, on_connect
        self._loop = asyncio.get_running_loop()
        self._retry_timer: asyncio.TimerHandle | None = None
        self._throttle = LogThrottle(lines=1, window_s=60.0)
        self._set_keys()
        events = FAILURES | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
        events |= 0 if patient else zmq.EVENT_CONNECT_RETRIED
        self._monitor = Monitor(socket, events, self._on_event)
        try:
            socket.connect(address)
        except zmq.ZMQError:
            self._monitor.close()
            raise

    def close(self) -> None:
        """Call before the socket is closed."""
        if self._retry_timer is not None:
            self._retry_timer.cancel()
        self._monitor.close()

    def _set_keys(self) -> None:
        """For the next connection. Raises `ConfigError`."""
        self._socket.setsockopt(zmq.CURVE_PUBLICKEY, self._keys.own_public())
        self._socket.setsockopt(zmq.CURVE_SECRETKEY, self._keys.secret())
        self._socket.setsockopt(zmq.CURVE_SERVERKEY, self._keys.server_key())

    def _on_event(self, event: int) -> None:
        if event in (zmq.EVENT_DISCONNECTED, zmq.EVENT_CONNECT_RETRIED):
            self._on_disconnect()
        elif event != zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._refused(event == zmq.EVENT_HANDSHAKE_FAILED_AUTH)
        else:
            self._on_connect()
            self._throttle = LogThrottle(lines=1, window_s=60.0)
            if self._retry_timer is not None:  # the failure belonged to an earlier attempt
                self._retry_timer.cancel()
                self._retry_timer = None

    def _refused(self, our_key: bool) -> None:
        """libzmq gives up after a refusal and holds only one server key: connect again after a pause."""
        if self._retry_timer is not None:
            return
        if (suffix := self._throttle.permit(time.monotonic())) is not None:
            reason = (
                f"it does not know our key: is {self._keys.role}'s key in its file of public keys?"
                if our_key
                else f"is it there, and is its key that of {self._keys.server} in our file of public keys?"
            )
            log.warning("no handshake with %s: %s%s", self._server, reason, suffix)
        self._retry_timer = self._loop.call_later(PAUSE_S, self._retry)

    def _retry(self) -> None:
        self._retry_timer = None
        self._socket.setsockopt(zmq.LINGER, 0)  # else the old attempt stays alive to deliver messages sent meanwhile
        with contextlib.suppress(zmq.ZMQError):  # libzmq may have given up already
            self._socket.disconnect(self._address)
        self._on_disconnect()  # messages that waited for this connection are gone with it
        self._monitor.discard()  # events of earlier attempts must not end the next one
        try:
            self._set_keys()
            self._socket.connect(self._address)
        except ConfigError as error:  # the files are being changed right now
            log.warning("%s: %s", self._server, error)
            self._retry_timer = self._loop.call_later(PAUSE_S, self._retry)
        self._on_use()


# A socket's connection events on the event loop. Knows zmq's events, not what they mean.


class Monitor:
    """Calls `on_event` with each event. Close it before the socket."""

    def __init__(self, socket: zmq.Socket[bytes], events: int, on_event: Callable[[int], None]) -> None:
        self._socket, self._on_event = socket, on_event
        self._monitor = socket.get_monitor_socket(events)
        self._loop = asyncio.get_running_loop()
        self._fd = int(self._monitor.getsockopt(zmq.FD))
        self._loop.add_reader(self._fd, self._read)
        self._first = self._loop.call_soon(self._read)  # the descriptor is edge-triggered: earlier events are silent

    def close(self) -> None:
        self._loop.remove_reader(self._fd)
        self._first.cancel()
        self._socket.disable_monitor()
        self._monitor.close(linger=0)

    def discard(self) -> None:
        """Drop the events that libzmq has queued."""
        for _ in self._events():
            pass

    def _read(self) -> None:
        for event in self._events():
            self._on_event(event)

    def _events(self) -> Iterator[int]:
        while not self._monitor.closed:
            try:
                yield int(parse_monitor_message(self._monitor.recv_multipart(zmq.NOBLOCK))["event"])
            except zmq.Again:
                return
