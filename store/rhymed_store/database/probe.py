"""Reads a database in a child process before this process trusts it.

LMDB keeps no checksums and follows every page number that it finds, so a damaged file can kill the process that reads
it. The child opens the file read-only and walks every table and every page. When it is killed by a signal, or LMDB
reports an error, the database is damaged. The content of values is left to their own checksums.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import lmdb

from rhymed.core.errors import StoreDamaged, StoreError
from rhymed.core.output import show
from rhymed.core.text import quoted

SHORT_S = 0.2  # walk after a clean end
LONG_S = 60.0  # walk after a kill
HANG_S = 30.0  # beyond the walk's own limit: the disk does not answer
OPENING = "its headers"
CRASHES = {signal.SIGBUS, signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGILL}
WRITE_FAILED, UNREADABLE, REFUSED = 3, 4, 5  # exit statuses: no copy could be written; the file; the machine
MACHINE = (MemoryError, lmdb.MemoryError, lmdb.ReadersFullError, lmdb.TlsFullError)
MOST_MAP_BYTES = 1 << 46  # 64 TiB; twice as much is the address space of a process


def probe(folder: Path, *, limit_s: float = 0.0, target: Path | None = None) -> None:
    """Walk the database for at most `limit_s` (0: to its end) and, if a target is given, copy it there compactly.

    A walk that reaches its limit has found no damage. A copy holds one snapshot while other processes write. Raises
    `StoreDamaged` naming the table that cannot be read, `StoreError` where the child fails for another reason or the
    copy cannot be written.
    """
    check_readable(folder)
    command = [sys.executable, "-P", "-m", __name__, str(folder), str(limit_s), *([str(target)] if target else [])]
    try:
        child = subprocess.run(
            command, capture_output=True, check=False, timeout=limit_s + HANG_S if limit_s else None
        )
    except subprocess.TimeoutExpired:
        raise damaged(folder, f"reading it did not end within {limit_s + HANG_S:.0f} s") from None
    if child.returncode == -signal.SIGALRM:
        return
    places, why = (output.decode(errors="replace").splitlines() for output in (child.stdout, child.stderr))
    if child.returncode == WRITE_FAILED:
        raise StoreError(f"{folder} cannot be copied to {target}: {why[-1]}")
    if child.returncode == 0:
        _check_complete(folder, places)
        return
    if child.returncode > 0 and child.returncode != UNREADABLE:
        error = why[-1] if why else f"status {child.returncode}"
        raise StoreError(f"{folder}: the process that reads it failed: {error}")
    reason = death(child.returncode, folder) if child.returncode < 0 else " ".join(why[-1:])
    raise damaged(folder, f"{places[-1] if places else OPENING}: {reason}")


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


def _check_complete(folder: Path, places: list[str]) -> None:
    """Its writer makes all tables in one transaction."""
    from rhymed_store.database.tables import TABLES  # not in the child, which has to start fast

    lost = [name for name in TABLES if f"table {name!r}" not in places]
    if lost and len(lost) < len(TABLES):
        raise damaged(folder, f"table {lost[0]!r} is missing")


def death(status: int, folder: Path) -> str:
    """How a child died that read the database. Raises `StoreError` where the cause was not what it read."""
    name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
    if -status not in CRASHES:
        raise StoreError(f"{folder}: the process that read it was ended by {name}; try again")
    return f"reading it ended with {name}"


def damaged(folder: Path, why: str) -> StoreDamaged:
    run = folder.parent if folder.name.partition("-")[0] == "store" else folder
    return StoreDamaged(
        f"{folder} is damaged: {why}. `rhymed history verify {quoted(run)}` names what is lost,"
        f" `rhymed history repair {quoted(run)}` saves the rest"
    )


def _main(folder: str, limit_s: str, target: str = "") -> int:
    """In the child. The last line on stdout names the place, the last one on stderr the error."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.setitimer(signal.ITIMER_REAL, float(limit_s))  # 0: none. SIGALRM ends the process, also inside LMDB
    try:
        with lmdb.open(
            folder, map_size=0, max_dbs=64, readonly=True, create=False, lock=bool(target), readahead=False
        ) as env:
            _say("list of tables")
            with env.begin() as txn, txn.cursor() as cursor:
                names = list(cursor.iternext(values=False))
            for name in names:
                _say(f"table {name.decode(errors='replace')!r}")
                _walk(env, env.open_db(name, create=False))
            _say("list of free pages")
            check_pages(env)
            if target:
                return _copy(env, target)
    except (lmdb.Error, ValueError, OSError, MemoryError) as error:
        show(message_of(error, folder), file=sys.stderr)
        return UNREADABLE if is_damage(error, folder) else REFUSED
    return 0


def message_of(error: Exception, folder: str) -> str:
    return str(error).removeprefix(f"{folder}: ") or type(error).__name__


def is_damage(error: Exception, folder: str) -> bool:
    """Whether the file is at fault, and not a machine that lacks memory, files or readers' places.

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


def _say(place: str) -> None:
    show(place, flush=True)


def _walk(env: Any, table: Any) -> None:
    """Every page of the tree, and the last byte of every value: a damaged size must not reach out of the file."""
    with env.begin(buffers=True) as txn, txn.cursor(table) as cursor:
        count = 0
        for count, value in enumerate(cursor.iternext(keys=False), 1):  # noqa: B007
            if value:
                value[-1]
        if count != (written := txn.stat(table)["entries"]):
            raise ValueError(f"{written} entries were written, {count} can be read")


def check_pages(env: Any) -> None:
    """Every page is either in use, once, or free: a compact copy counts them. Raises `lmdb.Error`."""
    with open(os.devnull, "wb") as null:
        env.copyfd(null.fileno(), compact=True)


def _copy(env: Any, target: str) -> int:
    try:
        env.copy(target, compact=True)
    except lmdb.Error as error:
        show(str(error), file=sys.stderr)
        return WRITE_FAILED
    return 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
