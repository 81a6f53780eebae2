"""A cgroup that limits the number of processes of a scoring process and all that it starts.

RLIMIT_NPROC would count every process of the user, and does not apply to root. Where no group can be made (a
container without the right, a user without delegation) `make` returns None, and the jail's init counts instead.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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


def make(limit: int) -> Cgroup | None:
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
