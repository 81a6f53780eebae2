"""Processors and memory in use by a process and all its descendants, by psutil.

CPU time includes that of descendants that have ended and were waited for, so programs of a second count. Blocking: it
reads the list of all processes of the machine, some milliseconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import psutil


class Reading(NamedTuple):
    cpu: float  # seconds of CPU per second, since the last reading; the first one: since the process started
    memory: int  # bytes
    processes: int


class ProcessTree:
    """`root`: a process id; None: this process."""

    def __init__(self, root: int | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._root, self._clock = psutil.Process(root), clock
        self._seconds, self._at = 0.0, clock() - (time.time() - self._root.create_time())

    def read(self) -> Reading:
        """Raises `psutil.Error` if the root is gone."""
        seconds, memory, processes = self._sums()
        before, begun = self._seconds, self._at
        self._seconds, self._at = seconds, self._clock()
        passed = self._at - begun
        return Reading(max(0.0, seconds - before) / passed if passed > 0 else 0.0, memory, processes)

    def _sums(self) -> tuple[float, int, int]:
        seconds, memory, processes = _of(self._root)
        for process in self._root.children(recursive=True):
            try:
                own, resident, _ = _of(process)
            except psutil.Error:
                continue  # it has just ended
            seconds, memory, processes = seconds + own, memory + resident, processes + 1
        return seconds, memory, processes


def _of(process: Any) -> tuple[float, int, int]:
    with process.oneshot():
        times, memory = process.cpu_times(), process.memory_info()
    ended = getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
    return times.user + times.system + ended, max(0, memory.rss - getattr(memory, "shared", 0)), 1
