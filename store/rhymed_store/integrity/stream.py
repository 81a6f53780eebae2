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
from rhymed.core.output import show
from rhymed_store.database.probe import REFUSED, UNREADABLE, check_readable, damaged, death, is_damage, message_of


@contextlib.contextmanager
def stream(folder: Path) -> Iterator[IO[bytes]]:
    """Read it to its end: it counts when the block has ended. Raises `StoreDamaged`, `StoreError`."""
    check_readable(folder)
    command = [sys.executable, "-P", "-m", __name__, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
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
        why = child.stderr.read().decode(errors="replace").strip().rpartition("\n")[2]
        status = child.wait()
    if status < 0:
        raise damaged(folder, death(status, folder))
    if status == UNREADABLE:
        raise damaged(folder, why)
    if status:
        raise StoreError(f"{folder}: the process that reads it failed: {why or f'status {status}'}")


def _main(folder: str) -> int:
    """In the child."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        with lmdb.open(folder, map_size=0, readonly=True, create=False, readahead=False) as env:
            env.copyfd(sys.stdout.fileno(), compact=False)
    except (lmdb.Error, OSError, MemoryError) as error:
        show(message_of(error, folder), file=sys.stderr)
        return UNREADABLE if is_damage(error, folder) else REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
