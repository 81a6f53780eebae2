"""Who is connected to a server of slices: those with a ticket, and those that have not shown one yet.

Owns the connections from `enter` to `leave`. Those without a ticket take no place of the others. If too many wait,
the oldest one of the address that has most of them is ended: one address cannot keep the others out.
"""

from __future__ import annotations

import socket
import threading
from collections import Counter

from rhymed_workers.weights.stream.channel import end

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
