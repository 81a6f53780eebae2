"""One TCP connection for slices: messages and contents, each in one direction at a time. Blocking.

A message is its length (4 bytes, big-endian) and its bytes; a content has no length, as both sides know it. With a
key both are sealed with AES-256-GCM: messages as one record, contents as records of `RECORD_BYTES`. The nonce is a
record's direction and number on this connection: what was changed, repeated, moved or left out is refused.
A key is used for one connection. Knows no slices.
"""

from __future__ import annotations

import contextlib
import socket
import time
from typing import Any

from rhymed.core.errors import DeadlineExceeded, MalformedMessage, PeerGone

MESSAGE_BYTES = 4096  # of a message, at most
RECORD_BYTES = 256 << 10  # stays in a processor's cache between reception and decryption
TAG_BYTES = 16
KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}  # seconds, seconds, tries


def end(connection: socket.socket) -> None:
    """Also ends a call of another thread."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


class Channel:
    """Owns `connection`. Every method raises `PeerGone`, or `DeadlineExceeded` after `deadline_s` of `within`."""

    def __init__(self, connection: socket.socket, *, key: bytes = b"", server: bool = False) -> None:
        self._socket = connection
        self._deadline = time.monotonic()
        self._cipher = _cipher(key) if key else None
        self._sent, self._received = _Nonces(server), _Nonces(not server)
        self._record = bytearray(RECORD_BYTES + TAG_BYTES)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE.items():
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def close(self) -> None:
        """Also ends a call of another thread."""
        end(self._socket)

    def within(self, deadline_s: float) -> None:
        """The calls that follow end in this time, together."""
        self._deadline = time.monotonic() + deadline_s

    def send(self, message: bytes) -> None:
        if self._cipher is not None:
            message = self._cipher.encrypt(self._sent.next(), message, None)
        self._send(len(message).to_bytes(4, "big") + message)

    def receive(self) -> bytes:
        """Raises `MalformedMessage` for a message that is too long, or not the peer's."""
        head = bytearray(4)
        self._receive(memoryview(head))
        length = int.from_bytes(head, "big")
        if length > MESSAGE_BYTES + TAG_BYTES:
            raise MalformedMessage(f"a message of {length} bytes on a connection for weights")
        message = bytearray(length)
        self._receive(memoryview(message))
        return bytes(message) if self._cipher is None else self._open(message)

    def send_content(self, content: memoryview) -> None:
        if self._cipher is None:
            self._send(content)
            return
        for start in range(0, len(content), RECORD_BYTES):
            plain = content[start : start + RECORD_BYTES]
            record = memoryview(self._record)[: len(plain) + TAG_BYTES]
            self._cipher.encrypt_into(self._sent.next(), plain, None, record)
            self._send(record)

    def receive_content(self, into: memoryview) -> None:
        """Fills `into`. Raises `MalformedMessage` for what is not the peer's."""
        if self._cipher is None:
            self._receive(into)
            return
        for start in range(0, len(into), RECORD_BYTES):
            plain = into[start : start + RECORD_BYTES]
            record = memoryview(self._record)[: len(plain) + TAG_BYTES]
            self._receive(record)
            self._open(record, plain)

    def _open(self, record: Any, into: memoryview | None = None) -> bytes:
        from cryptography.exceptions import InvalidTag

        assert self._cipher is not None, "a key"
        try:
            if into is None:
                return bytes(self._cipher.decrypt(self._received.next(), bytes(record), None))
            self._cipher.decrypt_into(self._received.next(), record, None, into)
        except InvalidTag:
            raise MalformedMessage("a record on a connection for weights was changed on its way") from None
        return b""

    def _send(self, content: Any) -> None:
        try:
            self._socket.settimeout(self._left_s())
            self._socket.sendall(content)  # the timeout holds for all of it
        except TimeoutError:
            raise DeadlineExceeded("a slice of the weights was not taken in time") from None
        except OSError as error:
            raise PeerGone(f"the connection for weights ended: {error}") from None

    def _receive(self, into: memoryview) -> None:
        done = 0
        try:
            while done < len(into):
                self._socket.settimeout(self._left_s())
                if not (count := self._socket.recv_into(into[done:])):
                    raise PeerGone("the connection for weights was closed")
                done += count
        except TimeoutError:
            raise DeadlineExceeded(f"a slice of the weights is late: {done} of {len(into)} bytes") from None
        except OSError as error:
            raise PeerGone(f"the connection for weights ended: {error}") from None

    def _left_s(self) -> float:
        """More than zero, which would mean not to wait. Raises `TimeoutError`: a peer that sends a little
        all the time is late, too."""
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        return left_s


class _Nonces:
    """96 bits: one for the direction, the rest counts. No two records of a key have the same."""

    def __init__(self, server: bool) -> None:
        self._direction, self._count = b"\1" if server else b"\0", 0

    def next(self) -> bytes:
        self._count += 1
        return self._direction + self._count.to_bytes(11, "big")


def can_seal() -> bool:
    """Whether the library that seals is installed."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        return False
    return hasattr(AESGCM, "decrypt_into")


def _cipher(key: bytes) -> Any:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(key)
