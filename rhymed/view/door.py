"""The address of a dashboard: what may be written for it, which port is taken, how many may come in.

The wanted port, and the next ones where it is taken; but who had one of these before, and died, comes back to it.
What was taken stands in `dashboard.json`. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import json
import os
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from rhymed.errors import ConfigError

ADDRESS_FILE = "dashboard.json"
TRIES = 20  # ports after the wanted one
MOST_CONNECTIONS = 128
BACKLOG = 64


Socket = socket.socket


class Address(NamedTuple):
    host: str
    port: int  # 0: any

    @property
    def is_local(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def url(self) -> str:
        """As a browser takes it; where all addresses are listened to, by this machine's name."""
        host = self.host
        if host in ("0.0.0.0", "::", ""):
            host = socket.gethostname()
        return f"http://[{host}]:{self.port}/" if ":" in host else f"http://{host}:{self.port}/"


def parse(text: str) -> Address:
    """`HOST:PORT`, `:PORT`, `[HOST]:PORT`. Raises `ConfigError`."""
    host, colon, port = text.removeprefix("http://").rstrip("/").rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535 or not _is_host(host):
        raise ConfigError(f"net.http = {text!r}: HOST:PORT is expected, e.g. 127.0.0.1:8420")
    return Address(host or "127.0.0.1", int(port))


def _is_host(host: str) -> bool:
    if re.fullmatch(r"[A-Za-z0-9.-]*", host):
        return True
    try:
        return bool(ipaddress.ip_address(host))
    except ValueError:
        return False


def read(folder: Path, since: float = 0.0) -> Address | None:
    """Where the run's dashboard is, or was; None: nobody told, or before this time (Unix seconds)."""
    file = folder / ADDRESS_FILE
    try:
        if file.stat().st_mtime < since:
            return None
        return parse(str(json.loads(file.read_text())["url"]))
    except (OSError, ValueError, TypeError, KeyError, ConfigError):
        return None


def listen(wanted: Address, earlier: int = 0) -> tuple[socket.socket, Address]:
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
        return bound, Address(wanted.host, bound.getsockname()[1])
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


def write(folder: Path, address: Address) -> None:
    """Tell others where it is; without the token."""
    file = folder / ADDRESS_FILE
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    fresh.write_text(json.dumps({"url": address.url}) + "\n")
    fresh.replace(file)


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
