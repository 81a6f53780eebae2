"""Which connection gives way when there are too many. Pure.

Invariant: a new connection always gets a place, and it never takes that of a connection whose request was allowed.
Strangers are the others: their request is missing, incomplete or refused, or everybody's is allowed. Among them, the
oldest of the network with the most gives way. Knows neither sockets nor HTTP.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from functools import lru_cache

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
