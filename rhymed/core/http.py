"""One connection with its time limits, around aiohttp's own handler of it, and all of them.

A connection without a complete request is closed `REQUEST_S` after it was made, one whose client takes nothing of its
answer for `UNREAD_S`; a slow client may take longer. aiohttp closes those that are idle between two requests
(`IDLE_S`). A silent one costs no handler. Who gives way when there are too many is decided in `places`. Knows no
routes and no tokens.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from rhymed.core.text import short
from rhymed.core.wire.limits import LogThrottle

# Which connection gives way when there are too many. Pure.
#
# Invariant: a new connection always gets a place, and it never takes that of a connection whose request was allowed.
# Strangers are the others: their request is missing, incomplete or refused, or everybody's is allowed. Among them,
# the oldest of the network with the most gives way. Knows neither sockets nor HTTP.

MOST_STRANGERS = 1024
MOST_NEAR = 512  # strangers of one network
MOST_KNOWN = 128
PREFIX_V6 = 64  # a client with one address of such a network has all of them


@dataclass(eq=False)
class Place:
    network: str
    is_known: bool = False
    is_busy: bool = False


@dataclass
class Places:
    """Of each kind the oldest come first: strangers by their arrival, the others by their last request."""

    strangers: int = MOST_STRANGERS
    near: int = MOST_NEAR
    known: int = MOST_KNOWN
    _strangers: dict[str, dict[Place, None]] = field(default_factory=dict)
    _known: dict[Place, None] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._known) + sum(map(len, self._strangers.values()))

    def enter(self, network: str) -> tuple[Place, Place | None]:
        """The place of a new connection, and the one that gives way to it, which has left already."""
        leaving = None
        if len(self._strangers.get(network, ())) >= self.near:
            leaving = next(iter(self._strangers[network]))
        elif sum(map(len, self._strangers.values())) >= self.strangers:
            crowd = max(self._strangers.values(), key=len)
            leaving = next(iter(crowd))
        if leaving is not None:
            self.leave(leaving)
        place = Place(network)
        self._strangers.setdefault(network, {})[place] = None
        return place, leaving

    def allow(self, place: Place) -> Place | None:
        """Its request is answered from now on. The one that gives way to it has left already."""
        self.leave(place)
        place.is_known = place.is_busy = True
        self._known[place] = None
        if len(self._known) <= self.known:
            return None
        leaving = next((each for each in self._known if not each.is_busy), next(iter(self._known)))
        self.leave(leaving)
        return leaving

    def leave(self, place: Place) -> None:
        self._known.pop(place, None)
        near = self._strangers.get(place.network, {})
        near.pop(place, None)
        if not near:
            self._strangers.pop(place.network, None)


@lru_cache(4096)  # a flood comes from few addresses; to read one is half the cost of a connection
def network_of(host: str) -> str:
    """The addresses that one stranger may have: an IPv4 address, or an IPv6 network. `host`: as a socket names it."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, PREFIX_V6), strict=False))


# One connection with its time limits, around aiohttp's own handler of it, and all of them.

REQUEST_S = 10.0
UNREAD_S = 30.0
IDLE_S = 15.0
LINGER_S = 1.0  # for a request's body, which no route wants
LATE_S = 1.0  # if this process was stopped, it has not read requests that arrived in time: it gets this time to do so

Make = Callable[[], asyncio.Protocol]
Transport = asyncio.BaseTransport


class Connections:
    """`factory` is the listening socket's; of more connections than `Places` has, the oldest give way."""

    def __init__(self, places: Places | None = None) -> None:
        self._places = places or Places()
        self._open: dict[Transport, Connection] = {}
        self._by_place: dict[Place, Connection] = {}

    def __len__(self) -> int:
        return len(self._open)

    def factory(self, make: Make) -> Callable[[], asyncio.BaseProtocol]:
        return lambda: Connection(self, make)

    def add(self, connection: Connection, transport: asyncio.Transport) -> Place:
        peer = transport.get_extra_info("peername")
        place, leaving = self._places.enter(network_of(str(peer[0])) if isinstance(peer, tuple) else "")
        self._open[transport] = self._by_place[place] = connection
        self._close(leaving)
        return place

    def remove(self, transport: Transport, place: Place) -> None:
        self._places.leave(place)
        self._open.pop(transport, None)
        self._by_place.pop(place, None)

    @contextlib.contextmanager
    def answering(self, transport: Transport | None, *, proven: bool) -> Iterator[None]:
        """While a complete request is answered. `proven`: it was allowed, and not everybody's would have been."""
        connection = self._open.get(transport) if transport is not None else None
        if connection is None:  # it was closed in the meantime
            yield
            return
        connection.has_asked()
        if proven:
            self._close(self._places.allow(connection.place))
        try:
            yield
        finally:
            connection.place.is_busy = False

    def close(self) -> None:
        for connection in list(self._open.values()):
            connection.abort()

    def _close(self, place: Place | None) -> None:
        if place is not None and (connection := self._by_place.get(place)) is not None:
            connection.abort()


CONNECTIONS = web.AppKey("connections", Connections)


class Connection(asyncio.Protocol):
    place: Place

    def __init__(self, all: Connections, make: Make) -> None:
        self._all, self._make = all, make
        self._handler: asyncio.Protocol | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._has_asked = False

    def connection_made(self, transport: Transport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are of no class of asyncio
        self.place = self._all.add(self, self._transport)
        self._expect(REQUEST_S)

    def connection_lost(self, error: Exception | None) -> None:
        self._expect(None)
        self._all.remove(self._transport, self.place)
        if self._handler is not None:
            self._handler.connection_lost(error)

    def data_received(self, data: bytes) -> None:
        if self._handler is None:
            self._handler = self._make()
            self._handler.connection_made(self._transport)
        self._handler.data_received(data)

    def eof_received(self) -> bool | None:
        return self._handler.eof_received() if self._handler is not None else None

    def pause_writing(self) -> None:
        self._expect_reader()
        if self._handler is not None:
            self._handler.pause_writing()

    def resume_writing(self) -> None:
        self._expect(None if self._has_asked else REQUEST_S)
        if self._handler is not None:
            self._handler.resume_writing()

    def has_asked(self) -> None:
        if not self._has_asked:
            self._has_asked = True
            self._expect(None)

    def abort(self) -> None:
        self._transport.abort()

    def _expect_reader(self) -> None:
        """Closes the connection unless the client takes something of what waits for it, again and again."""
        waiting = self._transport.get_write_buffer_size()

        def look() -> None:
            if self._transport.get_write_buffer_size() < waiting:
                self._expect_reader()
            else:
                self.abort()

        self._expect(UNREAD_S, look)

    def _expect(self, seconds: float | None, otherwise: Callable[[], None] | None = None) -> None:
        """Closes the connection, or calls `otherwise`, after so many seconds, unless something else is expected
        before. None: no limit."""
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        due, call = loop.time() + (seconds or 0.0), otherwise or self.abort

        def over() -> None:
            if loop.time() > due + LATE_S:
                self._timer = loop.call_later(LATE_S, call)
            else:
                call()

        self._timer = loop.call_later(seconds, over) if seconds is not None else None


# The log of requests that aiohttp cannot read: one line each without a traceback, and few of them in a flood.

NAME = "rhymed.core.http"
QUOTED = 80  # characters of what a stranger sent


class Quiet(logging.Filter):
    def __init__(self) -> None:
        super().__init__()
        self._throttle = LogThrottle()

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, ConnectionError):
            return False  # the client left
        suffix = self._throttle.permit(time.monotonic())
        if suffix is None:
            return False
        text = record.getMessage()
        if isinstance(error, HttpProcessingError):
            text = f"a malformed request: {short(error.message, QUOTED)}"
            record.levelno, record.levelname = logging.INFO, "INFO"
            record.exc_info = record.exc_text = None
        record.msg, record.args = text + suffix, ()
        return True


def quiet_log() -> logging.Logger:
    """For aiohttp's handlers."""
    log = logging.getLogger(NAME)
    if not any(isinstance(each, Quiet) for each in log.filters):
        log.addFilter(Quiet())
    return log
