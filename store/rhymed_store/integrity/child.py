"""The child's side of `isolated`: reads one snapshot of a database and answers requests until its parent leaves.

A request is a list of an operation's name and its arguments, the answer a pair: whether it succeeded, and the result
or the error's text. The process that reads is a fork, which may die of what it reads.
"""

from __future__ import annotations

import os
import resource
import sys
from itertools import islice
from multiprocessing.connection import Connection
from typing import Any

import lmdb
import msgspec

from rhymed_store.database.probe import check_pages, is_damage, message_of

BATCH_BYTES = 1 << 20  # of one answer to `scan`
MOST_VALUE_BYTES = 1 << 30  # a longer one is damaged
END = ""  # of a table, as the state of a scan; `MORE` after a full batch, otherwise an error's text
MORE = "more"
DIED = "died"  # in the place of whether a request succeeded: reading for it killed the process, with this status
REFUSED = "refused"  # likewise: the machine lacks something, the file is not at fault
DISORDER = "its keys are out of order"


class Snapshot:
    def __init__(self, folder: str) -> None:
        self._env = _open(folder)
        self._txn = self._env.begin(buffers=True)
        self._tables: dict[str, Any] = {}
        self.failed = False  # LMDB reported an error: its transaction refuses everything from now on

    def close(self) -> None:
        self._env.close()

    def open(self) -> None:
        """Nothing more than the first request of any kind does."""

    def count(self, table: str) -> int | None:
        try:
            return int(self._txn.stat(self._table(table))["entries"])
        except lmdb.NotFoundError:
            return None

    def _table(self, name: str) -> Any:
        if name not in self._tables:
            self._tables[name] = self._env.open_db(name.encode(), txn=self._txn, create=False)
        return self._tables[name]

    def scan(self, table: str, start: bytes, reverse: bool, most: int, sizes: bool) -> tuple[list[Any], str]:
        """At most so many entries beyond the key `start` (empty: from the end), and how the scan ended.

        `sizes`: the size of each value in its place.
        """
        entries: list[Any] = []
        size = 0
        try:
            with self._txn.cursor(self._table(table)) as cursor:
                for key, value in islice(_beyond(cursor, start, reverse), most):
                    if start and (key >= start if reverse else key <= start):
                        return entries, f"{DISORDER} at {key.hex()}"
                    if value:
                        value[-1]  # a damaged size must not reach out of the file
                    entries.append((key, len(value) if sizes else _whole(value)))
                    start, size = key, size + (0 if sizes else len(value))
                    if size > BATCH_BYTES:
                        return entries, MORE
        except (lmdb.Error, ValueError) as error:
            self.failed = True
            return entries, str(error)
        return entries, MORE if len(entries) == most else END

    def read(self, table: str, spans: list[tuple[bytes, int, int]]) -> list[bytes | None]:
        """Spans of values: key, first byte, number of bytes. None where the table does not hold one."""
        handle = self._table(table)
        values = [(self._txn.get(key, db=handle), offset, offset + size) for key, offset, size in spans]
        return [
            None if value is None or len(value) < end else bytes(value[offset:end]) for value, offset, end in values
        ]

    def check_pages(self) -> None:
        check_pages(self._env)


def _open(folder: str) -> Any:
    """With a lock, so that a writer leaves the snapshot alone, unless the folder cannot be written."""
    options: dict[str, Any] = {"map_size": 0, "max_dbs": 64, "readonly": True, "create": False, "readahead": False}
    try:
        env = lmdb.open(folder, **options)
        env.reader_check()  # a reader that was killed must not hold back the writer
    except (lmdb.Error, OSError) as error:
        if not is_damage(error, folder):
            raise
        return lmdb.open(folder, lock=False, **options)
    return env


def _beyond(cursor: Any, start: bytes, reverse: bool) -> Any:
    """Entries after or before `start`, which itself is left out."""
    if not reverse:
        if not (cursor.set_range(start) if start else cursor.first()):
            return iter(())
        if start and bytes(cursor.key()) == start and not cursor.next():
            return iter(())
        return ((bytes(key), value) for key, value in cursor.iternext())
    inside = cursor.prev() if start and cursor.set_range(start) else cursor.last()
    return ((bytes(key), value) for key, value in cursor.iterprev()) if inside else iter(())


def _whole(value: Any) -> bytes:
    if len(value) > MOST_VALUE_BYTES:
        raise ValueError(f"a value of {len(value)} bytes")
    return bytes(value)


def serve(folder: str, parent: Connection) -> None:
    """Answer requests until the parent leaves. The first one opens the database."""
    snapshot: Snapshot | None = None
    while True:
        try:
            name, *arguments = msgspec.msgpack.decode(parent.recv_bytes())
        except EOFError:
            return
        try:
            snapshot = snapshot or Snapshot(folder)
            answer: Any = (True, getattr(snapshot, name)(*arguments))
            failed = snapshot.failed
        except (lmdb.Error, OSError, MemoryError) as error:
            answer, failed = (False if is_damage(error, folder) else REFUSED, message_of(error, folder)), True
        if failed and snapshot is not None:
            snapshot.close()
            snapshot = None
        parent.send_bytes(msgspec.msgpack.encode(answer))


def main(folder: str, descriptor: str) -> int:
    """Serve from a fork, and from another one when that dies: a fork starts a hundred times faster than a process."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with Connection(int(descriptor)) as parent:
        while True:
            if not (fork := os.fork()):
                serve(folder, parent)
                os._exit(0)
            status = os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])
            if status >= 0:
                return status
            parent.send_bytes(msgspec.msgpack.encode((DIED, status)))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
