"""The address of a dashboard: what may be written for it, which port is taken, how many may come in.

The wanted port, and the next ones where it is taken; but who had one of these before, and died, comes back to it.
What was taken stands in `dashboard.json`. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import errno
import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from rhymed import atomic
from rhymed.errors import ConfigError
from rhymed.run.layout import ADDRESS_FILE
from rhymed.wire.addresses import HttpAddress, parse_http

TRIES = 20  # ports after the wanted one
MOST_CONNECTIONS = 128
BACKLOG = 64


Socket = socket.socket


def read(folder: Path, since: float = 0.0) -> HttpAddress | None:
    """Where the run's dashboard is, or was; None: nobody told, or before this time (Unix seconds)."""
    file = folder / ADDRESS_FILE
    try:
        if file.stat().st_mtime < since:
            return None
        return parse_http(str(json.loads(file.read_text())["url"]))
    except (OSError, ValueError, TypeError, KeyError, ConfigError):
        return None


def listen(wanted: HttpAddress, earlier: int = 0) -> tuple[socket.socket, HttpAddress]:
    """A listening socket and where it is. Raises `ConfigError` where nothing can be bound."""
    trouble: OSError | None = None
    for port in _ports(wanted.port, earlier):
        try:
            bound = _bind(wanted.host, port)
        except OSError as error:
            trouble = error
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                break
            continue
        return bound, HttpAddress(wanted.host, bound.getsockname()[1])
    assert trouble is not None, "one port was tried"
    raise ConfigError(f"the dashboard cannot listen at {wanted.host}:{wanted.port}: {trouble.strerror or trouble}")


def _ports(wanted: int, earlier: int) -> Iterator[int]:
    near = [wanted + more for more in range(TRIES) if wanted and wanted + more < 65536]
    again = [earlier] if earlier and (not wanted or earlier in near) else []
    yield from dict.fromkeys([*again, *near, 0])


def _bind(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, place = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setblocking(False)
        made.bind(place)
        made.listen(BACKLOG)
    except OSError:
        made.close()
        raise
    return made


def write(folder: Path, address: HttpAddress) -> None:
    """Tell others where it is; without the token."""
    atomic.write(folder / ADDRESS_FILE, json.dumps({"url": address.url}) + "\n")


class Turnstile:
    """Makes a protocol for each connection, and for one too many a protocol that closes it."""

    def __init__(self, make: Callable[[], asyncio.Protocol], inside: Callable[[], int]) -> None:
        self._make, self._inside = make, inside

    def __call__(self) -> asyncio.BaseProtocol:
        return self._make() if self._inside() < MOST_CONNECTIONS else Full()


class Full(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport), "a stream's"
        transport.abort()
