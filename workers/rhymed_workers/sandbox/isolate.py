"""A sandbox out of the kernel's own parts: `python -I -m rhymed_workers.sandbox.isolate SPEC`, then the driver, on our stdin.

With `isolate`: no network, no process to be seen but its own, a root of read-only binds with an empty /tmp, no
capabilities. Without: nothing but what the driver's limits do. Where the kernel refuses, it ends with a traceback
before the driver says that it is ready.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from pathlib import Path

from rhymed_workers.sandbox import driver, linux
from rhymed_workers.sandbox.linux import BIND, NO_DEVICES, NO_EXEC, NO_SUID, READ_ONLY, RECURSIVE, REMOUNT, mount

DEVICES = ("null", "zero", "random", "urandom")
APART = linux.NEW_MOUNTS | linux.NEW_PIDS | linux.NEW_NET | linux.NEW_IPC | linux.NEW_NAMES
KEPT = {1: READ_ONLY, 2: NO_SUID, 4: NO_DEVICES, 8: NO_EXEC, 1024: 1024, 2048: 2048, 4096: 1 << 21}
"""Flags of statvfs to flags of mount: what a mount has, a remount in a user namespace must not take away."""


def main() -> None:
    spec = json.loads(sys.argv[1])
    linux.die_with_parent(signal.SIGKILL, spec["parent"])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if spec["isolate"]:
        _leave_processes()
        _leave_files(spec["visible"], spec["bytes"])
    linux.drop_rights()
    driver.main()


def _leave_processes() -> None:
    """Returns in the first process of a namespace, whose end is ours."""
    if os.geteuid() == 0:
        linux.unshare(APART)
    else:
        linux.own_user(APART)
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    first = os.fork()
    if first:
        _, status = os.waitpid(first, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 255)
    linux.die_with_parent(signal.SIGKILL, 0)


def _leave_files(visible: list[str], size: int) -> None:
    """A root of its own on a tmpfs; only /tmp can be written."""
    mount("none", "/", None, linux.PRIVATE | RECURSIVE)
    root = Path("/tmp")
    mount("tmpfs", str(root), "tmpfs", NO_SUID | NO_DEVICES, f"size={size},mode=755")
    for source in visible:
        _bind(source, root / source.lstrip("/"))
    for name in DEVICES:
        _bind(f"/dev/{name}", root / "dev" / name)
    for name in ("proc", "tmp", "old"):
        (root / name).mkdir(exist_ok=True)
    mount("proc", str(root / "proc"), "proc", NO_SUID | NO_DEVICES | NO_EXEC)
    mount("tmpfs", str(root / "tmp"), "tmpfs", NO_SUID | NO_DEVICES, f"size={size},mode=777")
    linux.call("pivot_root", str(root).encode(), str(root / "old").encode())
    os.chdir("/")
    linux.call("umount2", b"/old", linux.DETACH)
    os.rmdir("/old")
    mount("none", "/", None, REMOUNT | BIND | READ_ONLY | NO_SUID | NO_DEVICES)
    os.chdir("/tmp")


def _bind(source: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if Path(source).is_dir():
        target.mkdir(exist_ok=True)
    else:
        target.touch()
    mount(source, str(target), None, BIND | RECURSIVE)
    flags = os.statvfs(target).f_flag
    kept = sum(flag for bit, flag in KEPT.items() if flags & bit)
    dev = 0 if source.startswith("/dev/") else NO_DEVICES
    mount("none", str(target), None, REMOUNT | BIND | READ_ONLY | NO_SUID | dev | kept)


if __name__ == "__main__":
    main()
