"""A socket's connection events on the event loop. Knows zmq's events, not what they mean."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import zmq
from zmq.utils.monitor import parse_monitor_message


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
