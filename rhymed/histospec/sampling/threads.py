"""A team of threads for short kernels that run without the interpreter's lock.

numba's own threads are not used: two threads cannot use them at once, and the OpenMP kind does not survive a fork.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


class ThreadTeam:
    """`size` threads, the calling one included."""

    def __init__(self, size: int) -> None:
        self.size = max(1, size)
        self._helpers = ThreadPoolExecutor(max(1, self.size - 1), "histospec", _use_all_cores)

    def run(self, work: Callable[[int], None], shares: int) -> None:
        """Calls `work(share)` for every share below `shares`. Raises an error of any of them. Threads take one share
        at a time, so a thread that is not scheduled delays only one."""
        left = iter(range(shares))  # gives each number once, to any thread

        def help() -> None:
            for share in left:
                work(share)

        helpers = [self._helpers.submit(help) for _ in range(1, min(self.size, shares))]
        help()
        for helper in helpers:
            helper.result()

    def close(self) -> None:
        self._helpers.shutdown()


def _use_all_cores() -> None:
    """A thread inherits its creator's cores, and vLLM binds the sampling thread to a single one."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, set().union(*map(_cores, Path("/proc/self/task").iterdir())))


def _cores(task: Path) -> set[int]:
    try:
        return os.sched_getaffinity(int(task.name))
    except ProcessLookupError:
        return set()
