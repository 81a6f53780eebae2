"""Which head has a run: a lease that its owner renews, for places where no lock works.

Locks of the kernel are exact on one machine and, on shared storage, often missing or local to each host. A lease is
therefore a file that its owner writes again and again; a head that finds another's lease ends. `refusal` is the rule
for both places: `SharedLease` applies it to a run's folder, and `rhymed.records.remote.head` to a run's copy.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from rhymed.core import atomic
from rhymed.core.errors import ConfigError, FilesLost
from rhymed.core.service.host import host_id
from rhymed.core.text import age

log = logging.getLogger(__name__)


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    owner: str  # on shared storage a random word of the run's folder; in a folder, the boot of the machine
    host: str
    process: int
    folder: str
    at: float  # seconds since 1970 on the owner's clock, when it was renewed
    step: int = 0  # trained by then
    inode: int = 0  # of the folder; 0: unknown
    released: bool = False  # the owner has ended and written everything


def here(owner: str, folder: str, now: float, step: int = 0) -> Lease:
    return Lease(owner=owner, host=socket.gethostname(), process=os.getpid(), folder=folder, at=now, step=step)


def same_head(one: Lease, other: Lease) -> bool:
    """Whether both are of one folder on one machine, whichever process has renewed them."""
    return (one.owner, one.host, one.folder) == (other.owner, other.host, other.folder)


def is_renewed(lease: Lease, now: float, stale_s: float) -> bool:
    """Clocks of hosts may differ, but not by more than `stale_s`."""
    return abs(now - lease.at) < stale_s


def refusal(found: Lease | None, mine: Lease, stale_s: float, *, take_over: bool) -> str:
    """Why this head may not have the run now, and the way out; empty: it may."""
    if found is None or found.released or same_head(found, mine):
        return ""
    who = f"process {found.process} on {found.host}, folder {found.folder}"
    since = f"{age(max(0.0, mine.at - found.at))} ago, after {found.step} steps"
    if is_renewed(found, mine.at, stale_s):
        end = f"end it there, or, if that machine is gone, wait {stale_s:.0f} s and add --take-over"
        return f"another head has this run: {who}; last seen {since}. Two would overwrite each other: {end}"
    if take_over:
        return ""
    return (
        f"another head had this run and did not give it back: {who}; last seen {since}. If that machine is gone, add"
        " --take-over; if it comes back, it stops by itself"
    )


def encode(lease: Lease) -> bytes:
    return msgspec.json.encode(lease) + b"\n"


def decode(content: bytes | None) -> Lease | None:
    """None: there is none, or it is not whole."""
    try:
        return msgspec.json.decode(content or b"", type=Lease)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


# The lease of a run's folder, for folders on storage that several machines mount. On one machine the kernel's lock
# decides, at once; where it does not reach, or is missing, as on some network file systems, this file does. A copy of
# the folder is another folder: its lease is not believed.

FILE = "lease.json"  # in the run's folder
RENEW_S = 10.0
STALE_S = 60.0


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
        if found is not None and found.owner != host_id():
            raise FilesLost(
                f"{found.host} (process {found.process}) has taken over {self._folder}: this `rhymed run` stops"
            )
        self._write()

    def release(self) -> None:
        with contextlib.suppress(OSError):
            found = _found(self._folder, self._inode)
            if found is not None and found.owner == host_id():
                (self._folder / FILE).unlink(missing_ok=True)

    def _write(self) -> None:
        try:
            atomic.write(self._folder / FILE, encode(_mine(self._folder, self._inode)))
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
    elif found is not None and found.host == mine.host and not is_renewed(found, mine.at, STALE_S):
        return  # this machine, before it was started again
    elif why := refusal(found, mine, STALE_S, take_over=take_over):
        raise ConfigError(f"{folder}: {why}")


def _mine(folder: Path, inode: int) -> Lease:
    return msgspec.structs.replace(here(host_id(), str(folder), time.time()), inode=inode)


def _found(folder: Path, inode: int) -> Lease | None:
    try:
        found = decode((folder / FILE).read_bytes())
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
