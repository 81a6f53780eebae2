"""TCP ports for servers that a test starts, and starts again at the same port.

The system gives a port of its ephemeral range to any connection that a process opens, so a server that comes back
to such a port may find it taken. These are below that range.
"""

from __future__ import annotations

import os
import random
import socket
from pathlib import Path

FIRST = 12_000
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")

_random = random.Random(os.urandom(8))  # several test processes choose at the same time
_given: set[int] = set()


def free_ports(count: int) -> list[int]:
    """Different ones at each call of this process."""
    end = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else 32_768
    ports: list[int] = []
    while len(ports) < count:
        port = _random.randrange(FIRST, end)
        if port not in _given and is_free(port):
            _given.add(port)
            ports.append(port)
    return ports


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
