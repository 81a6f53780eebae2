"""Serves slices that this worker has fetched to workers of other hosts.

A slice is served only after it was verified here, and is verified again by its receiver, against a digest from the
trainer. Knows no trainer; who fetches what from whom is the tracker's decision.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

from rhymed.core import messages
from rhymed.core.errors import AddressRefused, WireError
from rhymed.core.wire.keys import OPEN, Keyring
from rhymed.core.wire.sockets import Parcel, Server
from rhymed_workers.weights.slices import MappedFile

log = logging.getLogger(__name__)

KEPT = 2  # editions: one may be fetched while another host still fetches the one before


class Copy:
    """A file of this host, complete or being fetched."""

    def __init__(self, edition: str, file: MappedFile) -> None:
        self.edition, self.file = edition, file
        self.stored: set[int] = set()  # verified slices

    def answer(self, ask: messages.GetSlice) -> Parcel:
        """Raises `WireError`."""
        if ask.index not in self.stored:
            raise WireError(f"slice {ask.index} of edition {ask.edition} is not here")
        return Parcel(messages.Slice(), [self.file.slice(ask.index)])


class Relay:
    """Bound to `listen`; `address` is where others reach it. Create and close it on the event loop."""

    def __init__(self, listen: str, announced: str, *, keys: Keyring = OPEN) -> None:
        self._copies: dict[str, Copy] = {}
        self._server = Server(listen, messages.GetSlice, self._answer, keys=keys)
        port = self._server.address.rpartition(":")[2]
        self.address = f"{announced.rpartition(':')[0]}:{port}" if announced.startswith("tcp://") else announced

    def offer(self, copy: Copy) -> None:
        self._copies.pop(copy.edition, None)
        self._copies[copy.edition] = copy
        for old in list(self._copies)[:-KEPT]:
            del self._copies[old]

    def withdraw(self, copy: Copy) -> None:
        if self._copies.get(copy.edition) is copy:
            del self._copies[copy.edition]

    def close(self) -> None:
        self._server.close()
        self._copies.clear()

    async def _answer(self, peer: bytes, ask: messages.GetSlice, frames: Sequence[bytes]) -> Parcel:
        if (copy := self._copies.get(ask.edition)) is None:
            raise WireError(f"edition {ask.edition} of the weights is not here")
        return copy.answer(ask)


def relay_address(setting: str, weights: str) -> str:
    """As `net.relay` has it; empty: none. Blocking.

    `weights` is the trainer's address: by default, the interface that reaches it is the one that others reach.
    """
    return _own_address(weights) if setting == "auto" else "" if setting == "off" else setting


def open_relay(address: str, bind: str, keys: Keyring) -> Relay | None:
    """None if the address cannot be bound, which is logged."""
    host, _, port = address.rpartition(":")
    listen = f"tcp://{f'[{bind}]' if ':' in bind else bind}:{port}" if bind else f"{host}:{port}"
    try:
        return Relay(listen, address, keys=keys)
    except AddressRefused as error:
        log.warning("this worker passes no weights on to other hosts (net.relay): %s", error)
        return None


def _own_address(weights: str) -> str:
    """Of the interface that reaches this address, with a port that the system chooses; empty if there is none."""
    url = urlsplit(weights)
    if url.scheme != "tcp" or not url.hostname:
        return ""
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(url.hostname, url.port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)  # sends nothing: the system only chooses a route
            own = str(probe.getsockname()[0])
    except OSError as error:
        log.warning("no route to %s: %s", weights, error)
        return ""
    found = ipaddress.ip_address(own.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        return f"tcp://{found.ipv4_mapped}:0" if found.ipv4_mapped else f"tcp://[{own}]:0"
    return f"tcp://{own}:0"
