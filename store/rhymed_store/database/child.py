"""Reads a database in a child process before this process trusts it: how the child ends says what is wrong.

LMDB keeps no checksums and follows every page number that it finds, so a damaged file can kill the process that reads
it. A child that crashes, or to which LMDB reports an error, has read a damaged file; any other end is a fault of the
machine, and no damage. Knows nothing of what is read.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb

from rhymed.core.errors import StoreDamaged, StoreError
from rhymed.core.output import show
from rhymed.core.text import quoted

CRASHES = {signal.SIGBUS, signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGILL}
UNREADABLE, REFUSED, TOLD = 4, 5, 6  # exit statuses: the file; the machine; stderr says it in a sentence
MACHINE = (MemoryError, lmdb.MemoryError, lmdb.ReadonlyError, lmdb.ReadersFullError, lmdb.TlsFullError)
MOST_MAP_BYTES = 1 << 46  # 64 TiB; twice as much is the address space of a process


class Unreadable(Exception):
    """LMDB reported an error, or the child died of what it read. Says how."""


def command(module: str, folder: Path, *words: str) -> list[str]:
    return [sys.executable, "-P", "-m", module, str(folder), *words]


def ask(module: str, folder: Path, limit_s: float | None = None) -> Any:
    """What `answer` of this module gave in a child. Raises `Unreadable`, `StoreError`."""
    check_readable(folder)
    try:
        child = subprocess.run(command(module, folder), capture_output=True, check=False, timeout=limit_s)
    except subprocess.TimeoutExpired:
        raise StoreError(f"{folder} was not read within {limit_s:.0f} s; try again") from None
    judge(folder, child.returncode, child.stderr)
    return json.loads(child.stdout)


def answer(folder: str, read: Callable[[Path], Any]) -> int:
    """In the child: the exit status, after what was read is on stdout as JSON."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        show(json.dumps(read(Path(folder))))
    except (lmdb.Error, StoreError, ValueError, OSError, MemoryError) as error:
        return fail(error, folder)
    return 0


def fail(error: Exception, folder: str) -> int:
    """In the child: the error on stderr, and the exit status for it."""
    show(str(error).removeprefix(f"{folder}: ") or type(error).__name__, file=sys.stderr)
    if isinstance(error, StoreError) and not isinstance(error, StoreDamaged):
        return TOLD
    return UNREADABLE if _is_damage(error, folder) else REFUSED


def judge(folder: Path, status: int, stderr: bytes) -> None:
    """How a child ended. Raises `Unreadable` if the file that it read is at fault, `StoreError` if not."""
    why = stderr.decode(errors="replace").strip().rpartition("\n")[2]
    if status < 0:
        raise Unreadable(death(status, folder))
    if status == UNREADABLE:
        raise Unreadable(why)
    if status:
        failed = f"{folder}: the process that reads it failed: {why or f'status {status}'}"
        raise StoreError(why if status == TOLD else failed)


def death(status: int, folder: Path) -> str:
    """How a child died that read the database. Raises `StoreError` where the cause was not what it read."""
    name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
    if -status not in CRASHES:
        raise StoreError(f"{folder}: the process that read it was ended by {name}; try again")
    return f"reading it ended with {name}"


def check_readable(folder: Path) -> None:
    """Raises `StoreError` where there is no database, or we may not read it."""
    file, size = folder / "data.mdb", 0
    try:
        with contextlib.suppress(FileNotFoundError), file.open("rb") as opened:
            size = os.fstat(opened.fileno()).st_size
    except OSError as error:
        raise StoreError(f"{file} cannot be read: {error.strerror or error}") from None
    if not size:
        raise StoreError(f"{folder} has no data.mdb: no store process has opened it yet")


def damaged(folder: Path, why: str) -> StoreDamaged:
    run = folder.parent if folder.name.partition("-")[0] == "store" else folder
    return StoreDamaged(f"{folder} is damaged: {why}. {ways_on(run)}")


def ways_on(run: Path) -> str:
    """For a run whose store is damaged, as a sentence."""
    return (
        "Put a copy of its data.mdb back (`rhymed history backup` and `restore` make copies), or continue from the"
        f" newest checkpoint with an empty store: `rhymed run --resume {quoted(run)} --without-history`"
    )


def _is_damage(error: Exception, folder: str) -> bool:
    """Whether the file is at fault, and not a machine that lacks memory, files, readers' places or rights.

    A header that claims more than a process can map is out of memory, too.
    """
    if isinstance(error, lmdb.MemoryError):
        return _claims_too_much(Path(folder, "data.mdb"))
    return not isinstance(error, MACHINE) and getattr(error, "code", 0) not in (errno.EMFILE, errno.ENFILE)


def _claims_too_much(file: Path) -> bool:
    page = os.sysconf("SC_PAGE_SIZE")
    with file.open("rb") as opened:
        headers = [opened.read(page), opened.read(page)]
    for header in headers:
        map_bytes, last_page = (int.from_bytes(header[at : at + 8], "little") for at in (32, 136))
        if max(map_bytes, last_page * page) > MOST_MAP_BYTES:
            return True
    return False
