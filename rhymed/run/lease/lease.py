"""The lease of a run: which head has it, and until when others have to believe that. Pure, but for `here`.

Locks of the kernel are exact on one machine and, on shared storage, often missing or local to each host. A lease is
therefore a file that its owner writes again and again; a head that finds another's lease ends.
"""

from __future__ import annotations

import os
import socket

import msgspec

from rhymed.text import age


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
