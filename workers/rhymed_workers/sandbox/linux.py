"""What Linux offers to keep processes apart, through the C library: namespaces, mounts, signals of a parent's death.

Every call raises `OSError` where the kernel or a container's rules refuse it; nothing here decides what to do then.
Imports the standard library only: it is loaded before anything else in a process that must start quickly.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable
from pathlib import Path

NEW_MOUNTS, NEW_NAMES, NEW_IPC = 0x00020000, 0x04000000, 0x08000000
NEW_USER, NEW_PIDS, NEW_NET = 0x10000000, 0x20000000, 0x40000000
READ_ONLY, NO_SUID, NO_DEVICES, NO_EXEC, REMOUNT, BIND = 1, 2, 4, 8, 32, 4096
RECURSIVE, PRIVATE = 16384, 1 << 18
DETACH = 2
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_SUBREAPER, PR_NO_NEW_PRIVS = 1, 4, 24, 36, 38
CAPABILITIES = 64

libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: int | bytes | None) -> None:
    """A function of the C library that answers 0 when all went well."""
    if getattr(libc, name)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def prctl(option: int, value: int) -> None:
    call("prctl", option, ctypes.c_ulong(value), *(ctypes.c_ulong(0),) * 3)  # type: ignore[arg-type]


def unshare(flags: int) -> None:
    call("unshare", flags)


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    encoded = kind.encode() if kind else None
    size = ctypes.c_ulong(flags)
    call("mount", source.encode(), target.encode(), encoded, size, data.encode() if data else None)  # type: ignore[arg-type]


def die_with_parent(signal: int, parent: int) -> None:
    """Get this signal when the parent dies; `parent` is whose child we must be, 0 for one outside our namespace."""
    prctl(PR_SET_PDEATHSIG, signal)
    if os.getppid() != parent:
        os._exit(1)  # it was faster


def own_processes() -> None:
    """From now on children are in a PID namespace of their own, the first of them its init."""
    if os.geteuid() == 0:
        unshare(NEW_PIDS)
    else:
        own_user(NEW_PIDS)


def own_user(flags: int) -> None:
    """A user namespace, and others with it. Ids stay what they are."""
    uid, gid = os.geteuid(), os.getegid()
    unshare(NEW_USER | flags)
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def own_proc() -> None:
    """Mount /proc of our own PID namespace, where only we see it: ids there are the ids that we have ourselves."""
    unshare(NEW_MOUNTS)
    mount("none", "/", None, PRIVATE | RECURSIVE)
    mount("proc", "/proc", "proc", NO_SUID | NO_DEVICES | NO_EXEC)


def drop_rights() -> None:
    """No capability and no way to get one by running something. For good."""
    prctl(PR_NO_NEW_PRIVS, 1)
    for number in range(CAPABILITIES):
        try:
            prctl(PR_CAPBSET_DROP, number)
        except OSError:
            continue  # more than this kernel has, or none held
    header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    call("capset", header, sets)  # type: ignore[arg-type]


def works(trial: Callable[[], None]) -> bool:
    """Whether this raises nothing, tried in a child that ends with it."""
    child = os.fork()
    if child == 0:
        try:
            trial()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def isolates() -> bool:
    """Whether `own_processes` and `own_proc` are allowed here."""

    def trial() -> None:
        own_processes()
        if not works(own_proc):
            raise OSError

    return works(trial)


# Families


def children(pid: int) -> list[int]:
    """Direct children, of all its threads. Empty when it is gone."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    except OSError:
        return found
    return found


def family(roots: Iterable[int]) -> list[int]:
    """These and all that descends from them, ancestors first."""
    found = list(roots)
    for pid in found:
        found += children(pid)
    return found


def tasks(pids: Iterable[int]) -> int:
    """Processes and threads of these."""
    total = 0
    for pid in pids:
        try:
            total += len(os.listdir(f"/proc/{pid}/task"))
        except OSError:
            continue
    return total
