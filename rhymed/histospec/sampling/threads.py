"""Threads that share one short piece of work. For kernels that run without the interpreter's lock.

numba's own threads are not used: they cannot be entered from two threads at once, and the OpenMP kind does not
survive a fork.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


class ThreadTeam:
    """`size` threads, the caller among them."""

    def __init__(self, size: int) -> None:
        self.size = max(1, size)
        self._helpers = ThreadPoolExecutor(max(1, self.size - 1), "histospec", _use_all_cores)

    def run(self, work: Callable[[int], None], shares: int) -> None:
        """`work(share)` for every share below `shares`; an error in any is raised.

        Shares are taken one by one, so a helper that other processes keep from its core holds up no more than one.
        """
        left = iter(range(shares))  # a range's iterator hands out each number once, whoever asks

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
    """A thread inherits its maker's cores, and vLLM ties the thread that samples to a single one."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, set().union(*map(_cores, Path("/proc/self/task").iterdir())))


def _cores(task: Path) -> set[int]:
    try:
        return os.sched_getaffinity(int(task.name))
    except ProcessLookupError:
        return set()
