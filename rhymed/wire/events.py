"""What libzmq tells of a socket's connection, on the event loop. Knows zmq's events, not what they mean."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import zmq
from zmq.utils.monitor import parse_monitor_message


class Monitor:
    """`told` is called with each event. Closed before the socket is."""

    def __init__(self, socket: zmq.Socket[bytes], events: int, told: Callable[[int], None]) -> None:
        self._socket, self._told = socket, told
        self._monitor = socket.get_monitor_socket(events)
        self._loop = asyncio.get_running_loop()
        self._fd = int(self._monitor.getsockopt(zmq.FD))
        self._loop.add_reader(self._fd, self._look)
        self._first = self._loop.call_soon(self._look)  # the descriptor is edge-triggered: nobody tells of what was

    def close(self) -> None:
        self._loop.remove_reader(self._fd)
        self._first.cancel()
        self._socket.disable_monitor()
        self._monitor.close(linger=0)

    def forget(self) -> None:
        """What is told already, and nobody has heard."""
        for _ in self._events():
            pass

    def _look(self) -> None:
        for event in self._events():
            self._told(event)

    def _events(self) -> Iterator[int]:
        while not self._monitor.closed:
            try:
                yield int(parse_monitor_message(self._monitor.recv_multipart(zmq.NOBLOCK))["event"])
            except zmq.Again:
                return
