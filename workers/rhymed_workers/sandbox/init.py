"""The init of a jail: forks the scoring process, adopts its orphans, counts its processes and kills what is left.

In a PID namespace it is the namespace's init, so the kernel kills everything when it ends. Without one it is the
process to which orphans fall (a subreaper), and kills all descendants itself. Drawing: rhymed_workers.sandbox.jail.

`Cgroup` limits the number of processes where the machine allows one.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rhymed_workers.sandbox import linux

COUNT_S = 0.1  # between two counts of the processes, where no cgroup limits them
END_S = 3.0  # for the guard and us to end everything
TOO_MANY = 1


class Init:
    """`guard`: the guard's process id as this process sees it, 0 in a namespace. `report`: a descriptor to close."""

    def __init__(self, max_tasks: int, guard: int, group: Cgroup | None, report: int, child: str) -> None:
        self._max_tasks = max_tasks
        self._guard = guard
        self._group = group
        self._report = report
        self._child = child
        self._isolated = guard == 0

    def run(self, output: tuple[int, int], status: int) -> None:
        """Write the scoring process's wait status, and whether it had too many processes, to `status`, and exit.

        `output`: the pipe for what the scoring process prints, which the guard reads.
        """
        signal.set_wakeup_fd(-1)
        awaited = {signal.SIGCHLD} | (set() if self._isolated else {signal.SIGTERM})
        signal.pthread_sigmask(signal.SIG_BLOCK, awaited)  # an init receives only signals that it blocks or handles
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        linux.die_with_parent(signal.SIGKILL, self._guard)
        if _unread(status):
            os._exit(1)  # the guard died before the call; in a namespace its id, 0, does not show that
        if self._group is not None:
            self._group.join()
        if self._isolated:
            linux.own_proc()
        else:
            linux.prctl(linux.PR_SET_SUBREAPER, 1)
        init = os.getpid()
        self._scoring = os.fork()
        if self._scoring == 0:
            self._become_scoring_process(init, output, awaited)
        for end in output:
            os.close(end)
        redirect_to_null(0, 1)
        os.write(status, b"%d %d" % self._wait(awaited))
        self._kill_rest()
        os._exit(0)

    def _become_scoring_process(self, init: int, output: tuple[int, int], blocked: set[signal.Signals]) -> None:
        code = 1
        try:
            os.setsid()  # else a signal to its own group would hit init and guard
            linux.die_with_parent(signal.SIGKILL, init)
            # It keeps the end that the guard reads, too: in the moment between the guard's death and its own, a print
            # would fail with a broken pipe otherwise, which a tool would give the policy as its answer.
            kept, printed = output
            os.dup2(printed, 2)
            os.dup2(kept, 3)
            os.set_inheritable(3, False)
            os.closerange(4, max(*output, self._report, 64) + 1)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
            run_child(self._child)
            code = 0
        except BaseException as error:
            sys.excepthook(type(error), error, error.__traceback__)
        finally:
            with contextlib.suppress(BaseException):
                sys.stderr.flush()
            os._exit(code)

    def _wait(self, awaited: set[signal.Signals]) -> tuple[int, int]:
        """Until the scoring process ends: its wait status, and TOO_MANY if it was ended for that."""
        interval_s = COUNT_S if self._group is None else 3600.0
        while True:
            received = signal.sigtimedwait(awaited, interval_s)
            if received is None:
                if self._group is None and linux.tasks(self._descendants()) > self._max_tasks:
                    return signal.SIGKILL, TOO_MANY
            elif received.si_signo == signal.SIGTERM:
                return signal.SIGKILL, 0
            elif (status := self._reap()) is not None:
                return status, 0

    def _reap(self) -> int | None:
        """Reap all ended children, orphans too. The scoring process's wait status if it is among them."""
        scoring_status = None
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                scoring_status = ended[1] if ended[0] == self._scoring else scoring_status
        return scoring_status

    def _descendants(self) -> list[int]:
        if self._isolated:
            return [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"]
        return linux.family(linux.children(os.getpid()))

    def _kill_rest(self) -> None:
        """Kill until no descendant is left, since they may be starting more. In a namespace the kernel does it."""
        deadline = time.monotonic() + END_S / 2
        while not self._isolated and (left := self._descendants()) and time.monotonic() < deadline:
            linux.kill(left)
            self._reap()


def run_child(module: str) -> None:
    """The `main` of this module."""
    with contextlib.suppress(BrokenPipeError):  # the pool has ended
        importlib.import_module(module).main()


def redirect_to_null(*descriptors: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in descriptors:
        os.dup2(null, descriptor)
    os.close(null)


def _unread(pipe: int) -> bool:
    """Whether a pipe's other end is closed."""
    poll = select.poll()
    poll.register(pipe, 0)
    return bool(poll.poll(0))


# A cgroup that limits the number of processes of a scoring process and all that it starts.
#
# RLIMIT_NPROC would count every process of the user, and does not apply to root. Where no group can be made (a
# container without the right, a user without delegation) `make_cgroup` returns None, and the jail's init counts.

PREFIX = "rhymed-score-"


@dataclass(frozen=True)
class Cgroup:
    path: Path

    def join(self) -> None:
        """Move this process, and all that it will start, into the group."""
        (self.path / "cgroup.procs").write_text("0")

    def pids(self) -> list[int]:
        with contextlib.suppress(OSError):
            return [int(pid) for pid in (self.path / "cgroup.procs").read_text().split()]
        return []

    def refused(self) -> bool:
        """Whether the kernel has refused a fork in it."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            return int((self.path / "pids.events").read_text().split()[1]) > 0
        return False

    def remove(self) -> None:
        """Works only when it is empty."""
        with contextlib.suppress(OSError):
            self.path.rmdir()


def make_cgroup(limit: int) -> Cgroup | None:
    """A new group for at most `limit` tasks; None where the kernel or the container does not allow it."""
    for parent in _parents():
        group = Cgroup(parent / f"{PREFIX}{os.getpid()}")
        try:
            _sweep(parent)
            group.path.mkdir()
            (group.path / "pids.max").write_text(str(limit))
            if (group.path / "cgroup.procs").exists():
                return group
        except OSError:
            group.remove()
    return None


def _parents() -> Iterator[Path]:
    """Groups in which one can be made: our own in cgroup v1; in v2 one that delegates the pids controller."""
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
        memberships = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return
    for _, controllers, path in memberships:
        for mount in mounts:
            kind, options = mount[2], mount[3].split(",")
            if kind == "cgroup" and "pids" in options and "pids" in controllers.split(","):
                yield Path(mount[1] + path)
            elif kind == "cgroup2" and not controllers:
                own = Path(mount[1] + path)
                yield from (group for group in (own, own.parent) if _delegates(group))


def _delegates(group: Path) -> bool:
    with contextlib.suppress(OSError):
        return "pids" in (group / "cgroup.subtree_control").read_text().split()
    return False


def _sweep(parent: Path) -> None:
    """Remove empty groups whose guards were killed. A group in use cannot be removed."""
    for left in parent.glob(f"{PREFIX}*"):
        if not Path("/proc", left.name.removeprefix(PREFIX)).exists():
            Cgroup(left).remove()
