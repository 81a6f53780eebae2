"""The lease of a run's folder, for folders on storage that several machines mount.

On one machine the kernel's lock decides, at once; where it does not reach, or is missing, as on some network file
systems, this file does. A copy of the folder is another folder: its lease is not believed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from rhymed import atomic
from rhymed.errors import ConfigError, FilesLost
from rhymed.run.lease import lease as leases
from rhymed.run.lease.lease import Lease

log = logging.getLogger(__name__)

FILE = "lease.json"  # in the run's folder
RENEW_S = 10.0
STALE_S = 60.0
BOOT = Path("/proc/sys/kernel/random/boot_id")


class SharedLease:
    """`locked`: the kernel's lock of this folder is ours, so no other process of this machine has it."""

    def __init__(self, folder: Path, *, locked: bool, take_over: bool) -> None:
        self._folder, self._inode, self._renewed = folder, folder.stat().st_ino, 0.0
        refuse(folder, locked=locked, take_over=take_over)
        self._write()

    def check(self) -> None:
        """Renew it in time. Raises `FilesLost` where another machine has taken over."""
        if time.monotonic() - self._renewed < RENEW_S:
            return
        found = _found(self._folder, self._inode)
        if found is not None and found.owner != _boot():
            raise FilesLost(
                f"{found.host} (process {found.process}) has taken over {self._folder}: this `rhymed run` stops"
            )
        self._write()

    def release(self) -> None:
        with contextlib.suppress(OSError):
            found = _found(self._folder, self._inode)
            if found is not None and found.owner == _boot():
                (self._folder / FILE).unlink(missing_ok=True)

    def _write(self) -> None:
        try:
            atomic.write(self._folder / FILE, leases.encode(_mine(self._folder, self._inode)))
            self._renewed = time.monotonic()
        except OSError as error:  # a full disk, which is reported elsewhere; or the folder is being removed
            log.warning("the lease of %s cannot be renewed: %s", self._folder, error)


def refuse(folder: Path, *, locked: bool = True, take_over: bool) -> None:
    """Raises `ConfigError` where another head has the folder. Changes nothing. `locked`: see `SharedLease`."""
    inode = folder.stat().st_ino
    found, mine = _found(folder, inode), _mine(folder, inode)
    if found is not None and found.owner == mine.owner:
        if not locked and found.process != mine.process and _lives(found.process):
            raise ConfigError(f"{folder} is in use by a running `rhymed run` (process {found.process})")
    elif found is not None and found.host == mine.host and not leases.is_renewed(found, mine.at, STALE_S):
        return  # this machine, before it was started again
    elif why := leases.refusal(found, mine, STALE_S, take_over=take_over):
        raise ConfigError(f"{folder}: {why}")


def _mine(folder: Path, inode: int) -> Lease:
    return msgspec.structs.replace(leases.here(_boot(), str(folder), time.time()), inode=inode)


def _boot() -> str:
    return BOOT.read_text().strip() if BOOT.exists() else ""


def _found(folder: Path, inode: int) -> Lease | None:
    try:
        found = leases.decode((folder / FILE).read_bytes())
    except OSError:
        return None
    return found if found is not None and found.inode == inode else None


@contextlib.contextmanager
def leased(folder: Path, *, locked: bool, take_over: bool) -> Iterator[SharedLease]:
    """Raises `ConfigError` where another machine has the folder."""
    lease = SharedLease(folder, locked=locked, take_over=take_over)
    try:
        yield lease
    finally:
        lease.release()


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
