"""Which machine this is: two processes with the same `host_id` see the same files and the same shared memory."""

from __future__ import annotations

import functools
import uuid
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@functools.cache
def host_id() -> str:
    """The kernel's boot id; where there is none, the network card's number.

    A container has its host's, so a path has to be looked at as well before it is trusted.
    """
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return f"node-{uuid.getnode():x}"
