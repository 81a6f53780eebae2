"""Who may speak on a locked link: CURVE handshakes, seen from both ends.

The server's end: libzmq asks one `Desk` a process (ZAP, RFC 27) whether a key is known; a stranger's connection ends
there, before it can send a message. The key then comes with every message of the connection. The caller's end: only a
server with a pinned key is spoken to; of several keys the newest is tried first. Lets nobody in whose key it cannot
look up. Knows zmq, but no messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Callable

import zmq
from zmq.utils import z85

from rhymed.errors import ConfigError
from rhymed.wire.events import Monitor
from rhymed.wire.keys import Keyring, Known
from rhymed.wire.limits import Hush

log = logging.getLogger(__name__)

ZAP = "inproc://zeromq.zap.01"
ZAP_FRAMES = 7  # version, request, domain, address, routing id, mechanism, key
PAUSE_S = 1.0  # before a refused caller tries again, perhaps with another key
FAILURES = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)


class Desk:
    """Answers libzmq's questions about keys for all locked servers of this process, on the loop of the first."""

    def __init__(self) -> None:
        self._known: dict[bytes, Known] = {}  # domain of a server -> its keys
        self._numbers = itertools.count(1)
        self._socket: zmq.Socket[bytes] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._fd = -1
        self._hush = Hush()

    def open(self, known: Known) -> bytes:
        """Lets in who is in `known`; returns the domain to give to the server's socket."""
        if self._socket is None or self._loop is None or self._loop.is_closed():
            self._bind()
        domain = str(next(self._numbers)).encode()
        self._known[domain] = known
        return domain

    def close(self, domain: bytes) -> None:
        self._known.pop(domain, None)
        if not self._known and self._socket is not None:
            if self._loop is not None and not self._loop.is_closed():
                self._loop.remove_reader(self._fd)
            self._let_go(self._socket)
            self._socket = None

    def _bind(self) -> None:
        if self._socket is not None:  # of a loop that is gone
            self._let_go(self._socket)
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self._socket = context.socket(zmq.ROUTER)
        self._socket.bind(ZAP)
        self._loop = asyncio.get_running_loop()
        self._fd = int(self._socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._fd, self._serve)
        self._loop.call_soon(self._serve)

    @staticmethod
    def _let_go(socket: zmq.Socket[bytes]) -> None:
        socket.unbind(ZAP)  # at once; closing alone would give the name back some time later
        socket.close(linger=0)

    def _serve(self) -> None:
        while self._socket is not None:
            try:
                peer, empty, *question = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            code, text, user = self._judge(question)
            head = [peer, empty, b"1.0", question[1] if len(question) > 1 else b""]
            self._socket.send_multipart([*head, code, text, user, b""], zmq.NOBLOCK)

    def _judge(self, question: list[bytes]) -> tuple[bytes, bytes, bytes]:
        """(status, why, whose messages these are): 200 lets in."""
        if len(question) != ZAP_FRAMES or question[0] != b"1.0" or question[5] != b"CURVE" or len(question[6]) != 32:
            return b"500", b"not a question about a CURVE key", b""
        key = bytes(z85.encode(question[6]))
        known = self._known.get(question[2])
        if known is not None and known.role(key.decode()) is not None:
            return b"200", b"", key
        if (more := self._hush.may(time.monotonic())) is not None:
            log.warning("unknown key %s... from %s turned away%s", key[:8].decode(), question[3].decode(), more)
        return b"400", b"unknown key", b""


DESK = Desk()


def lock(socket: zmq.Socket[bytes], keys: Keyring, known: Known) -> bytes:
    """Make this socket, before it is bound, a CURVE server of known keys only; the domain, for `DESK.close`."""
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.own_public())
    socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret())
    domain = DESK.open(known)
    socket.setsockopt(zmq.ZAP_DOMAIN, domain)
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without an answer from the desk nobody gets in
    return domain


class Caller:
    """Connects a socket to a locked server and stays at it: after a refusal it reads the keys again and retries."""

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        address: str,
        keys: Keyring,
        who: str,
        touched: Callable[[], None],
        lost: Callable[[], None],
        found: Callable[[], None],
    ) -> None:
        self._socket, self._address, self._keys, self._who = socket, address, keys, who
        self._touched = touched  # called after the socket was used: its descriptor may have lost an edge
        self._lost, self._found = lost, found  # called when a connection has ended, and when there is one
        self._loop = asyncio.get_running_loop()
        self._again: asyncio.TimerHandle | None = None
        self._tries = 0
        self._hush = Hush(lines=1, window_s=60.0)
        self._present_keys()
        self._monitor = Monitor(
            socket, FAILURES | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED, self._heard
        )
        try:
            socket.connect(address)
        except zmq.ZMQError:
            self._monitor.close()
            raise

    def close(self) -> None:
        """Before the socket is closed."""
        if self._again is not None:
            self._again.cancel()
        self._monitor.close()

    def _present_keys(self) -> None:
        """For the next connection. Raises `ConfigError`."""
        pinned = self._keys.server_keys()
        self._socket.setsockopt(zmq.CURVE_PUBLICKEY, self._keys.own_public())
        self._socket.setsockopt(zmq.CURVE_SECRETKEY, self._keys.secret())
        self._socket.setsockopt(zmq.CURVE_SERVERKEY, pinned[self._tries % len(pinned)])

    def _heard(self, event: int) -> None:
        if event == zmq.EVENT_DISCONNECTED:
            self._lost()
        elif event != zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._refused(event == zmq.EVENT_HANDSHAKE_FAILED_AUTH)
        else:
            self._found()
            self._hush = Hush(lines=1, window_s=60.0)
            if self._again is not None:  # the failure was of an attempt before
                self._again.cancel()
                self._again = None

    def _refused(self, ours: bool) -> None:
        """libzmq gives up after a refusal, and knows one key only: connect anew after a pause."""
        if self._again is not None:
            return
        if (more := self._hush.may(time.monotonic())) is not None:
            what = (
                f"it does not know our key: is {self._keys.role}'s newest key in its file of public keys?"
                if ours
                else f"is it there, and is its key among those of {self._keys.server} in our file of public keys?"
            )
            log.warning("no handshake with %s: %s%s", self._who, what, more)
        self._again = self._loop.call_later(PAUSE_S, self._retry)

    def _retry(self) -> None:
        self._again = None
        self._tries += 1
        self._socket.setsockopt(zmq.LINGER, 0)  # else the old attempt lives on, to deliver what was sent meanwhile
        with contextlib.suppress(zmq.ZMQError):  # libzmq may have given up already
            self._socket.disconnect(self._address)
        self._lost()  # what waited for this connection is gone with it
        self._monitor.forget()  # what is told of attempts before must not end the next one
        try:
            self._present_keys()
            self._socket.connect(self._address)
        except ConfigError as error:  # the files are being changed just now
            log.warning("%s: %s", self._who, error)
            self._again = self._loop.call_later(PAUSE_S, self._retry)
        self._touched()
