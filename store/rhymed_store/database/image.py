"""A database as a stream of bytes, of one moment, while others read and write it.

Pages keep their places, so two streams differ only where the database does. A child process reads, so a damaged file
is an error here and no crash.
"""

from __future__ import annotations

import contextlib
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import lmdb

from rhymed.core.errors import StoreError
from rhymed_store.database.child import Unreadable, check_readable, command, damaged, fail, judge


@contextlib.contextmanager
def stream(folder: Path) -> Iterator[IO[bytes]]:
    """Read it to its end: it counts when the block has ended. Raises `StoreDamaged`, `StoreError`."""
    check_readable(folder)
    with subprocess.Popen(command(__name__, folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        try:
            yield child.stdout
        except BaseException:
            child.kill()
            raise
        if child.stdout.read(1):
            child.kill()
            raise StoreError(f"{folder}: not all of it was read")
        stderr = child.stderr.read()
        status = child.wait()
    try:
        judge(folder, status, stderr)
    except Unreadable as error:
        raise damaged(folder, str(error)) from None


def _main(folder: str) -> int:
    """In the child."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        with lmdb.open(folder, map_size=0, readonly=True, create=False, readahead=False) as env:
            env.copyfd(sys.stdout.fileno(), compact=False)
    except (lmdb.Error, OSError, MemoryError) as error:
        return fail(error, folder)
    return 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
