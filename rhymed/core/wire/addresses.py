"""Addresses of links and of the dashboard: which are local, and the checks before one is bound.

Invariant: an address that other machines can reach is bound only if its links are locked (`rhymed.core.wire.keys`) or
`insecure` is set; the socket of a living process is never taken over. Knows no zmq and no messages.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import stat
import time
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from rhymed.core.errors import AddressRefused, ConfigError

CLAIM_TRIES = 20

REMEDY = (
    "make keys with `rhymed keygen FOLDER` and set net.keys to the folder, use a loopback or ipc address,"
    " or, in a network that you trust, use --insecure (net.insecure = true)"
)
"""How to fix an address that is open to the network; the end of a sentence."""


def is_local(address: str) -> bool:
    """True for ipc, inproc and loopback TCP."""
    url = urlsplit(address)
    return url.scheme in ("ipc", "inproc") or is_loopback(url.hostname or "")


def is_loopback(host: str) -> bool:
    """Whether a host's name or address leads to this machine alone."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def bracketed(host: str) -> str:
    """As an address has it before its port."""
    return f"[{host}]" if ":" in host else host


def is_lockable(address: str) -> bool:
    """Whether keys apply: all TCP addresses, loopback too, because other users of the machine can connect to it."""
    return address.startswith("tcp://")


def check_open(address: str, *, locked: bool, insecure: bool) -> None:
    """Raises `AddressRefused` for a link that other machines could read or join."""
    if not (locked or insecure or is_local(address)):
        raise AddressRefused(f"{address} is open to the network and there are no keys: {REMEDY}")


def check_port(address: str) -> None:
    """zmq would silently take the port modulo 65536."""
    port = address.rpartition(":")[2]
    if address.startswith("tcp://") and port.isdigit() and int(port) > 65535:
        raise AddressRefused(f"{address}: there is no port {port}")


def check_owner(path: str) -> None:
    """A user who may make files in the folder of a socket could impersonate the peer: only this user and root may,
    and for root only root. Raises `AddressRefused`."""
    folder = os.path.dirname(path) or "."
    try:
        named, found = os.lstat(folder), os.stat(folder)
    except OSError:
        return  # no folder, so no socket in it
    for one in (named, found):  # a link belongs to its maker
        if one.st_uid not in (0, os.geteuid()):
            raise AddressRefused(
                f"ipc://{path}: {folder} belongs to another user (uid {one.st_uid}); choose another address"
            )
    if found.st_mode & stat.S_IWOTH:
        raise AddressRefused(f"ipc://{path}: every user may write into {folder}; choose a folder of your own")


def is_removed(address: str) -> bool:
    """Whether an ipc socket is gone: `rhymed run` removes its sockets when it ends."""
    return address.startswith("ipc://") and not Path(address.removeprefix("ipc://")).exists()


def claim(path: str) -> None:
    """Make way for a socket. zmq would silently take over a living server's; a dead server's file is removed."""
    folder = os.path.dirname(path) or "."
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
    except FileExistsError:
        raise AddressRefused(f"ipc://{path}: {folder} is no folder; choose another address") from None
    check_owner(path)
    if not os.path.exists(path):
        return
    for _ in range(CLAIM_TRIES):
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(path)
            except OSError:
                Path(path).unlink(missing_ok=True)
                return
        time.sleep(0.005)  # a socket that was just closed listens until zmq's own thread closes it
    raise AddressRefused(f"ipc://{path} is already served by a living process")


class HttpAddress(NamedTuple):
    host: str
    port: int  # 0: any

    @property
    def is_local(self) -> bool:
        return is_loopback(self.host)

    @property
    def url(self) -> str:
        """For a browser; with this machine's name if the server binds all interfaces."""
        host = self.host
        if host in ("0.0.0.0", "::", ""):
            host = socket.gethostname()
        return f"http://{bracketed(host)}:{self.port}/"


def parse_http(text: str) -> HttpAddress:
    """`HOST:PORT`, `:PORT` or `[HOST]:PORT`. Raises `ConfigError`."""
    host, colon, port = text.removeprefix("http://").rstrip("/").rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535 or not _is_host(host):
        raise ConfigError(f"net.http = {text!r}: HOST:PORT is expected, e.g. 127.0.0.1:8420")
    return HttpAddress(host or "127.0.0.1", int(port))


def _is_host(host: str) -> bool:
    if re.fullmatch(r"[A-Za-z0-9.-]*", host):
        return True
    try:
        return bool(ipaddress.ip_address(host))
    except ValueError:
        return False
