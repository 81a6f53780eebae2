"""Linux calls that keep processes apart, through the C library: namespaces, mounts, signals on a parent's death.

Every call raises `OSError` where the kernel or a container refuses it; the callers decide what to do then. Imports
the standard library only, and reads /proc itself instead of through psutil: the jail of a scoring process imports
this, and must start in milliseconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path

NEW_MOUNTS, NEW_USER, NEW_PIDS = 0x00020000, 0x10000000, 0x20000000
NO_SUID, NO_DEVICES, NO_EXEC = 2, 4, 8
RECURSIVE, PRIVATE = 16384, 1 << 18
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_SUBREAPER, PR_NO_NEW_PRIVS = 1, 24, 36, 38
CAPABILITIES = 64

libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: int | bytes | None) -> None:
    """Call a function of the C library that returns 0 on success."""
    if getattr(libc, name)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def prctl(option: int, value: int) -> None:
    call("prctl", option, ctypes.c_ulong(value), *(ctypes.c_ulong(0),) * 3)  # type: ignore[arg-type]


def unshare(flags: int) -> None:
    call("unshare", flags)


def mount(source: str, target: str, kind: str | None, flags: int) -> None:
    encoded = kind.encode() if kind else None
    call("mount", source.encode(), target.encode(), encoded, ctypes.c_ulong(flags), None)  # type: ignore[arg-type]


def die_with_parent(number: int, parent: int) -> None:
    """Receive this signal when the parent dies. `parent`: its process id as we see it; 0 if outside our namespace."""
    prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)  # it died before the call


def own_processes() -> None:
    """Put all later children into a new PID namespace; the first of them is its init."""
    if os.geteuid() == 0:
        unshare(NEW_PIDS)
        return
    uid, gid = os.geteuid(), os.getegid()  # keep the same ids in the user namespace that this needs
    unshare(NEW_USER | NEW_PIDS)
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def own_proc() -> None:
    """Mount a /proc of our own PID namespace, visible to us and our children only."""
    unshare(NEW_MOUNTS)
    mount("none", "/", None, PRIVATE | RECURSIVE)
    mount("proc", "/proc", "proc", NO_SUID | NO_DEVICES | NO_EXEC)


def drop_privileges() -> None:
    """Give up all capabilities, for good: running a set-uid program does not bring one back."""
    prctl(PR_NO_NEW_PRIVS, 1)
    for number in range(CAPABILITIES):
        try:
            prctl(PR_CAPBSET_DROP, number)
        except OSError:
            continue  # this kernel has fewer, or we hold none
    header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    call("capset", header, sets)  # type: ignore[arg-type]


def succeeds(attempt: Callable[[], None]) -> bool:
    """Run `attempt` in a forked child; whether it raised nothing."""
    child = os.fork()
    if child == 0:
        try:
            attempt()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def isolates() -> bool:
    """Whether `own_processes` and `own_proc` are allowed here."""

    def attempt() -> None:
        own_processes()
        if not succeeds(own_proc):
            raise OSError

    return succeeds(attempt)


# Process trees: the descendants of a process, and their end.


def children(pid: int) -> list[int]:
    """Direct children, of all its threads. Empty when it has ended."""
    pids: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            pids += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    except OSError:
        return pids
    return pids


def family(roots: Iterable[int]) -> list[int]:
    """`roots` and all their descendants, ancestors first."""
    pids = list(roots)
    for pid in pids:
        pids += children(pid)
    return pids


def tasks(pids: Iterable[int]) -> int:
    """Number of processes and threads of `pids`."""
    total = 0
    for pid in pids:
        try:
            total += len(os.listdir(f"/proc/{pid}/task"))
        except OSError:
            continue
    return total


def kill(pids: Iterable[int]) -> None:
    """Send SIGKILL to all that still exist."""
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
