"""Looking for processes, as this machine numbers them: inside a jail they have other ids."""

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def in_jails() -> list[int]:
    """Guard, init and scoring process of all jails of this test, and forks of scorers that executed nothing else."""
    return running(f'"parent": {os.getpid()},')


def running(mark: str) -> list[int]:
    """Processes with this in their command line."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "cmdline").read_bytes() and alive(int(folder.name)):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


async def wait_for(condition: Callable[[], Any]) -> bool:
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    return bool(condition())
