"""Identity of the machine: processes with the same `host_id` may share files and shared memory."""

from __future__ import annotations

import functools
import uuid
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@functools.cache
def host_id() -> str:
    """The kernel's boot id, else the network card's number. Containers have the id of their host, so a path must also
    be checked before it is used."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return f"node-{uuid.getnode():x}"
