"""After each item: what it left in the scoring process is put back, or found to be beyond that.

Put back: working folder, umask, environment, signal handlers, standard streams. Orphans (what a scorer started and
left to itself) are killed. Beyond it: many processes that are still its children, work that goes on when the answer
is given; then the process is *worn*, and the pool replaces it. What a scorer started while it was loaded, and
children and threads that rest, are its own business: pools and servers that serve every item.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rhymed_workers.sandbox.linux import children, family

CHILDREN_KEPT = 16
GLANCE_S = 0.05
REST_S = 0.5  # waiting time over which the CPU time of others is judged
BUSY = 0.5  # of one core
ROUNDS = 50  # killing orphans that make orphans
TICKS = os.sysconf("SC_CLK_TCK")
HANDLERS = [one for one in signal.Signals if one not in (signal.SIGKILL, signal.SIGSTOP)]


class Tidy:
    """Made when the scorers are loaded; how things are then is how they should be."""

    def __init__(self) -> None:
        self._keeper = os.getppid()
        self._folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
        self._umask = os.umask(0)
        os.umask(self._umask)
        self._environment = dict(os.environ)
        self._handlers = {one: signal.getsignal(one) for one in HANDLERS}
        self._streams: tuple[Any, ...] = (sys.stdin, sys.stdout, sys.stderr)
        self._printed_to = os.dup(2)
        self._given = {*children(self._keeper), *family([os.getpid()])}
        self._seen = self._lingering()
        self._others_s = self._waited_s = 0.0
        self._clock: tuple[float, float] | None = None

    def after(self) -> str:
        """Why the process is worn, in words; empty: it is as good as new."""
        with contextlib.suppress(Exception):  # of a stream that user code broke
            sys.stdout.flush()
        self._put_back()
        self._kill_orphans()
        lingering = self._lingering()
        if len([1 for kind, _ in lingering if kind == "process"]) > CHILDREN_KEPT:
            return f"it has more than {CHILDREN_KEPT} processes left over"
        news, self._seen = lingering - self._seen, lingering
        if news and self._glance() > BUSY:
            return "it left work running"
        return "work went on between two samples" if self._restless() else ""

    def _put_back(self) -> None:
        os.fchdir(self._folder)
        os.umask(self._umask)
        if os.environ != self._environment:
            os.environ.clear()
            os.environ.update(self._environment)
        for one, handler in self._handlers.items():
            if handler is not None and signal.getsignal(one) != handler:
                signal.signal(one, handler)
        signal.setitimer(signal.ITIMER_REAL, 0)  # an alarm left behind would kill an idle process
        for descriptor in (1, 2):
            os.dup2(self._printed_to, descriptor)
        self._streams = tuple(_opened(stream, number) for number, stream in enumerate(self._streams))
        sys.stdin, sys.stdout, sys.stderr = self._streams

    def _kill_orphans(self) -> None:
        """They fall to the keeper, whose child we are."""
        for _ in range(ROUNDS):
            orphans = [pid for pid in children(self._keeper) if pid not in self._given]
            living = [pid for pid in family(orphans) if _state(pid) != "Z"]
            if not living:
                return
            for pid in living:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.001)

    def _lingering(self) -> set[tuple[str, int]]:
        """Our threads, and processes that were not there when the scorers were loaded."""
        own = os.getpid()
        found = set[tuple[str, int]]()
        with contextlib.suppress(OSError):  # no /proc, or no file descriptor left
            found = {("thread", int(name)) for name in os.listdir("/proc/self/task")}
        return found | {("process", pid) for pid in family(children(own)) if pid not in self._given}

    def _glance(self) -> float:
        """CPU time of everybody but this thread, as a part of one core."""
        before, began = self._others_and_children(), time.monotonic()
        time.sleep(GLANCE_S)
        return (self._others_and_children() - before) / (time.monotonic() - began)

    def _others_and_children(self) -> float:
        return time.process_time() - time.thread_time() + _cpu_s(pid for kind, pid in self._seen if kind == "process")

    # Waiting for the next item, nobody should work

    def rest(self) -> None:
        self._clock = self._others_and_children(), time.monotonic()

    def wake(self) -> None:
        if self._clock is not None:
            self._others_s += self._others_and_children() - self._clock[0]
            self._waited_s += time.monotonic() - self._clock[1]

    def _restless(self) -> bool:
        if self._waited_s < REST_S:
            return False
        part, self._others_s, self._waited_s = self._others_s / self._waited_s, 0.0, 0.0
        return part > BUSY


def _opened(stream: Any, descriptor: int) -> Any:
    return open(descriptor, stream.mode, closefd=False) if stream.closed else stream


def _state(pid: int) -> str:
    """One letter; Z, a zombie, also when it is gone."""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return "Z"


def _cpu_s(pids: Iterable[int]) -> float:
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError, IndexError, ValueError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS
