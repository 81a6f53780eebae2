"""A cgroup that bounds how many processes a scoring subprocess and all that it starts may be.

RLIMIT_NPROC would count every process of the user, and does not bind root. Where no group can be made (a container
without the right, a user without delegation) `make` returns None, and the keeper counts instead.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PREFIX = "rhymed-score-"


@dataclass(frozen=True)
class Group:
    path: Path

    def join(self) -> None:
        """This process, and all that it will start."""
        (self.path / "cgroup.procs").write_text("0")

    def pids(self) -> list[int]:
        with contextlib.suppress(OSError):
            return [int(pid) for pid in (self.path / "cgroup.procs").read_text().split()]
        return []

    def refused(self) -> bool:
        """Whether anybody in it wanted one process more than it may have."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            return int((self.path / "pids.events").read_text().split()[1]) > 0
        return False

    def remove(self) -> None:
        """Nobody may be in it."""
        with contextlib.suppress(OSError):
            self.path.rmdir()


def make(limit: int) -> Group | None:
    """For this process's family; None where the kernel or the container does not allow it."""
    for parent in _parents():
        group = Group(parent / f"{PREFIX}{os.getpid()}")
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
    """Groups in which one of ours could be made: of cgroup v1 our own; of v2 one that hands the controller down."""
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
        memberships = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return
    for _, controllers, place in memberships:
        for mounted in mounts:
            kind, options = mounted[2], mounted[3].split(",")
            if kind == "cgroup" and "pids" in options and "pids" in controllers.split(","):
                yield Path(mounted[1] + place)
            elif kind == "cgroup2" and not controllers:
                own = Path(mounted[1] + place)
                yield from (group for group in (own, own.parent) if _hands_down(group))


def _hands_down(group: Path) -> bool:
    with contextlib.suppress(OSError):
        return "pids" in (group / "cgroup.subtree_control").read_text().split()
    return False


def _sweep(parent: Path) -> None:
    """Remove empty groups whose makers were killed. One that is in use cannot be removed."""
    for left in parent.glob(f"{PREFIX}*"):
        if not Path("/proc", left.name.removeprefix(PREFIX)).exists():
            Group(left).remove()
