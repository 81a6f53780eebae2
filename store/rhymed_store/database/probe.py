"""Walks every table and every page of a database in a child process, and copies it: before anything trusts the file.

The content of values is left to their own checksums.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import lmdb

from rhymed.core.errors import StoreError
from rhymed.core.output import show
from rhymed_store.database.child import Unreadable, check_readable, command, damaged, fail, judge

SHORT_S = 0.2  # walk after a clean end
LONG_S = 60.0  # walk after a kill
HANG_S = 30.0  # beyond the walk's own limit: the disk does not answer
OPENING = "its headers"
WRITE_FAILED = 3  # exit status: no copy could be written


def probe(folder: Path, *, limit_s: float = 0.0, target: Path | None = None) -> None:
    """Walk the database for at most `limit_s` (0: to its end) and, if a target is given, copy it there compactly.

    A walk that reaches its limit has found no damage. A copy holds one snapshot while other processes write. Raises
    `StoreDamaged` naming the table that cannot be read, `StoreError` where the child fails for another reason or the
    copy cannot be written.
    """
    try:
        walk(folder, limit_s=limit_s, target=target, shared=target is not None)
    except Unreadable as error:
        raise damaged(folder, str(error)) from None


def walk(folder: Path, *, limit_s: float = 0.0, target: Path | None = None, shared: bool = True) -> None:
    """As `probe`. Raises `Unreadable` in the place of `StoreDamaged`. `shared`: others may write it meanwhile."""
    check_readable(folder)
    words = [str(limit_s), "shared" if shared else "", *([str(target)] if target else [])]
    try:
        child = subprocess.run(
            command(__name__, folder, *words),
            capture_output=True,
            check=False,
            timeout=limit_s + HANG_S if limit_s else None,
        )
    except subprocess.TimeoutExpired:
        raise Unreadable(f"reading it did not end within {limit_s + HANG_S:.0f} s") from None
    if child.returncode == -signal.SIGALRM:
        return
    if child.returncode == WRITE_FAILED:
        raise StoreError(f"{folder} cannot be copied to {target}: {child.stderr.decode(errors='replace').strip()}")
    places = child.stdout.decode(errors="replace").splitlines()
    try:
        judge(folder, child.returncode, child.stderr)
    except Unreadable as error:
        raise Unreadable(f"{places[-1] if places else OPENING}: {error}") from None
    _check_complete(places)


def _check_complete(places: list[str]) -> None:
    """Its writer makes all tables in one transaction."""
    from rhymed_store.database.tables import TABLES  # not in the child, which has to start fast

    lost = [name for name in TABLES if f"table {name!r}" not in places]
    if lost and len(lost) < len(TABLES):
        raise Unreadable(f"table {lost[0]!r} is missing")


def _main(folder: str, limit_s: str, shared: str, target: str = "") -> int:
    """In the child. The last line on stdout names the place, the last one on stderr the error."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.setitimer(signal.ITIMER_REAL, float(limit_s))  # 0: none. SIGALRM ends the process, also inside LMDB
    try:
        with lmdb.open(
            folder, map_size=0, max_dbs=64, readonly=True, create=False, lock=bool(shared), readahead=False
        ) as env:
            _say("list of tables")
            with env.begin() as txn, txn.cursor() as cursor:
                names = list(cursor.iternext(values=False))
            for name in names:
                _say(f"table {name.decode(errors='replace')!r}")
                _walk(env, env.open_db(name, create=False))
            _say("list of free pages")
            _check_pages(env)
            if target:
                return _copy(env, target)
    except (lmdb.Error, ValueError, OSError, MemoryError) as error:
        return fail(error, folder)
    return 0


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


def _check_pages(env: Any) -> None:
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
