"""After each item: restores what the scorer changed in its process, or finds the process unfit for another item.

Restored: working folder, umask, environment, signal handlers, standard streams. Orphans (what a scorer started and
left) are killed. Unfit: too many processes that are still its children, or work that continues after the answer; the
pool then replaces the process. What a scorer started while it was loaded, and children and threads that are idle, may
stay: pools and servers that serve every item.

CPU times and states come from psutil. Children do not: it reads all processes of the machine to find them (2 ms with
100 of them, for each item), where rhymed_workers.sandbox.linux reads the family alone (0.1 ms).
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterable
from typing import Any

import psutil

from rhymed_workers.sandbox.linux import children, family, kill

MAX_CHILDREN = 16
SAMPLE_S = 0.05
IDLE_S = 0.5  # waiting time over which the CPU time of background work is judged
BUSY = 0.25  # of one core: on a full machine it is shared
ROUNDS = 50  # for killing orphans that make orphans
HANDLED = [number for number in signal.Signals if number not in (signal.SIGKILL, signal.SIGSTOP)]


class Cleanup:
    """Made when the scorers are loaded: restores the state of that moment."""

    def __init__(self) -> None:
        self._init = os.getppid()
        self._folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
        self._umask = os.umask(0)
        os.umask(self._umask)
        self._environment = dict(os.environ)
        self._handlers = {number: signal.getsignal(number) for number in HANDLED}
        self._streams: tuple[Any, ...] = (sys.stdin, sys.stdout, sys.stderr)
        self._stderr = os.dup(2)
        self._permitted = {*children(self._init), *family([os.getpid()])}
        self._background = self._find_background()
        self._background_s = self._waited_s = 0.0
        self._waiting: tuple[float, float] | None = None

    def restore(self) -> None:
        """The state, and no orphans."""
        with contextlib.suppress(Exception):  # of a stream that user code broke
            sys.stdout.flush()
        self._restore()
        self._kill_orphans()

    def run(self) -> str:
        """Why the process must not get another item; empty if it may."""
        self.restore()
        background = self._find_background()
        if len([1 for kind, _ in background if kind == "process"]) > MAX_CHILDREN:
            return f"it has more than {MAX_CHILDREN} processes left over"
        added, self._background = background - self._background, background
        if added and self._current_load() > BUSY:
            return "it left work running"
        return "work continued between two samples" if self._busy_while_waiting() else ""

    def _restore(self) -> None:
        os.fchdir(self._folder)
        os.umask(self._umask)
        if os.environ != self._environment:
            os.environ.clear()
            os.environ.update(self._environment)
        for number, handler in self._handlers.items():
            if handler is not None and signal.getsignal(number) != handler:
                signal.signal(number, handler)
        signal.setitimer(signal.ITIMER_REAL, 0)  # an alarm left behind would kill an idle process
        for descriptor in (1, 2):
            os.dup2(self._stderr, descriptor)
        self._streams = tuple(_opened(stream, number) for number, stream in enumerate(self._streams))
        sys.stdin, sys.stdout, sys.stderr = self._streams

    def _kill_orphans(self) -> None:
        """Orphans become children of init, which is our parent."""
        for _ in range(ROUNDS):
            orphans = [pid for pid in children(self._init) if pid not in self._permitted]
            living = [pid for pid in family(orphans) if _lives(pid)]
            if not living:
                return
            kill(living)
            time.sleep(0.001)

    def _find_background(self) -> set[tuple[str, int]]:
        """Our threads, and processes started after the scorers were loaded."""
        own = os.getpid()
        threads = set[tuple[str, int]]()
        with contextlib.suppress(OSError):  # no /proc, or no file descriptor left
            threads = {("thread", int(name)) for name in os.listdir("/proc/self/task")}
        return threads | {("process", pid) for pid in family(children(own)) if pid not in self._permitted}

    def _current_load(self) -> float:
        """CPU time of the background, as a fraction of one core."""
        before, began = self._background_cpu_s(), time.monotonic()
        time.sleep(SAMPLE_S)
        return (self._background_cpu_s() - before) / (time.monotonic() - began)

    def _background_cpu_s(self) -> float:
        processes = [pid for kind, pid in self._background if kind == "process"]
        return time.process_time() - time.thread_time() + cpu_s(processes)

    # While the process waits for an item, nothing should work

    def begin_wait(self) -> None:
        self._waiting = self._background_cpu_s(), time.monotonic()

    def end_wait(self) -> None:
        if self._waiting is not None:
            self._background_s += self._background_cpu_s() - self._waiting[0]
            self._waited_s += time.monotonic() - self._waiting[1]

    def _busy_while_waiting(self) -> bool:
        if self._waited_s < IDLE_S:
            return False
        load, self._background_s, self._waited_s = self._background_s / self._waited_s, 0.0, 0.0
        return load > BUSY


def _opened(stream: Any, descriptor: int) -> Any:
    return open(descriptor, stream.mode, closefd=False) if stream.closed else stream


def _lives(pid: int) -> bool:
    with contextlib.suppress(psutil.Error, OSError):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


def cpu_s(pids: Iterable[int]) -> float:
    total = 0.0
    for pid in pids:
        with contextlib.suppress(psutil.Error, OSError):
            times = psutil.Process(pid).cpu_times()
            total += times.user + times.system
    return total
