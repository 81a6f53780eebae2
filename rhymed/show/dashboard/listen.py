"""The address of a dashboard: which port it listens on, and where that is published.

It takes the wanted port, or the next free one; a dashboard that is restarted prefers the port that it had. The result
is written to `dashboard.json`. Knows no HTTP.
"""

from __future__ import annotations

import errno
import json
import socket
from collections.abc import Iterator
from pathlib import Path

from rhymed.core import atomic
from rhymed.core.errors import ConfigError
from rhymed.core.run.layout import ADDRESS_FILE
from rhymed.core.wire.addresses import HttpAddress, parse_http

TRIES = 20  # ports after the wanted one
BACKLOG = 4096  # a full queue costs the next client a second, until it tries again; the kernel may allow less

Socket = socket.socket


def read(folder: Path, since: float = 0.0) -> HttpAddress | None:
    """The run's dashboard, as published; None: not, or before `since` (Unix seconds)."""
    file = folder / ADDRESS_FILE
    try:
        if file.stat().st_mtime < since:
            return None
        return parse_http(str(json.loads(file.read_text())["url"]))
    except (OSError, ValueError, TypeError, KeyError, ConfigError):
        return None


def listen(wanted: HttpAddress, earlier: int = 0) -> tuple[socket.socket, HttpAddress]:
    """A listening socket and its address. Raises `ConfigError` if no port can be bound."""
    failure: OSError | None = None
    for port in _ports(wanted.port, earlier):
        try:
            bound = _bind(wanted.host, port)
        except OSError as error:
            failure = error
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                break
            continue
        return bound, HttpAddress(wanted.host, bound.getsockname()[1])
    assert failure is not None, "one port was tried"
    raise ConfigError(f"the dashboard cannot listen at {wanted.host}:{wanted.port}: {failure.strerror or failure}")


def _ports(wanted: int, earlier: int) -> Iterator[int]:
    near = [wanted + more for more in range(TRIES) if wanted and wanted + more < 65536]
    again = [earlier] if earlier and (not wanted or earlier in near) else []
    yield from dict.fromkeys([*again, *near, 0])


def _bind(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setblocking(False)
        bound.bind(address)
        bound.listen(BACKLOG)
    except OSError:
        bound.close()
        raise
    return bound


def keep(folder: Path, address: HttpAddress) -> None:
    """Publishes it again where the file has vanished. Raises `OSError`."""
    if folder.exists() and not (folder / ADDRESS_FILE).exists():
        write(folder, address)


def write(folder: Path, address: HttpAddress) -> None:
    """Publishes the address, without the token."""
    atomic.write(folder / ADDRESS_FILE, json.dumps({"url": address.url}) + "\n")
