"""The tables of a store's database and how they are read; `Reader` opens them next to a living store, or without one.

Invariant: reading changes nothing, and holds no snapshot longer than one transaction, since the writer cannot reuse
pages that a snapshot needs. Knows neither what may be written nor who reads.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import lmdb

from rhymed.core.errors import StoreDamaged, StoreError
from rhymed.core.messages import Drawn
from rhymed_store.codec import records
from rhymed_store.codec.records import SCHEMA
from rhymed_store.database.stream import Stream

TABLES = {
    "samples": "headers, by prompt, step, index",
    "tokens": "a stream of compressed responses, by position",
    "contexts": "prompt tokens, once a prompt",
    "prompts": "dataset rows",
    "drops": "why samples were dropped, by sample",
    "parts": "what each scorer gave, by sample; only where a reward has parts",
    "journal": "the state of samples, by step, prompt, index; only steps that no checkpoint covers",
    "logprobs": "keyed as the journal, of training steps",
    "partials": "first tokens of samples in progress, by the journal's key and position",
    "turns": "answers and turns of samples in progress, by the journal's key and number",
    "sessions": "what complete samples with an environment have beyond their record, by sample",
    "meta": "schema, run, counters, and which prompts each step drew from the plan",
}
SLACK = 64  # pages that LMDB may have allocated and never written
TWIN = os.strerror(errno.EAGAIN)  # LMDB's error when a process in another namespace has our process id


class Tables:
    """What reading and writing share. A subclass opens `_env`, then the tables."""

    folder: Path
    tables: dict[str, Any]
    _env: Any

    def _open_tables(self, *, create: bool) -> None:
        self.tables = {}
        with self._env.begin(write=True) if create else contextlib.nullcontext() as txn:
            # A writer makes all or, where a kill comes between, none. A reader's transaction would close them again.
            for name in TABLES:
                self.tables[name] = self._env.open_db(name.encode(), txn=txn, create=create)
        self.page_bytes: int = self._env.stat()["psize"]
        self.stream = Stream(self.tables["tokens"], self.page_bytes)

    def read(self) -> Any:
        """A read transaction, a context manager. Its results are views into the map, valid inside the context."""
        return self._env.begin(buffers=True)

    @property
    def changes(self) -> int:
        """Number of transactions so far, of all processes. Equal numbers mean equal content."""
        return int(self._env.info()["last_txnid"])

    def used_bytes(self, txn: Any, *names: str) -> int:
        """Bytes of the pages in use by these tables (none named: by all). Deleted entries leave free pages."""
        stats = [txn.stat(self.tables[name]) for name in names or self.tables]
        pages: int = sum(stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"] for stat in stats)
        return pages * self.page_bytes

    def number(self, txn: Any, name: str, default: int = 0) -> int:
        value = txn.get(name.encode(), db=self.tables["meta"])
        return default if value is None else int(bytes(value))

    def drawn(self, txn: Any, from_step: int = 0) -> list[Drawn]:
        """What trained steps drew from the plan, from this one on, in their order.

        Empty if the prompts of all steps follow from the plan alone. Raises `StoreDamaged`.
        """
        found = []
        with txn.cursor(self.tables["meta"]) as cursor:
            for key, value in cursor if cursor.set_range(records.drawn_key(max(0, from_step))) else ():
                if not bytes(key).startswith(records.PREFIX):
                    break
                found.append(records.unpack_drawn(key, value))
        return found


class Reader(Tables):
    """Read-only: any number of them may be open, in any process. A context manager."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with self._explained(), contextlib.ExitStack() as opened:
            if not (folder / "data.mdb").exists():
                raise StoreError(f"{folder} has no data.mdb: no store process has opened it yet")
            self._env = lmdb.open(
                str(folder),
                map_size=0,  # the writer's
                max_dbs=len(TABLES),
                readonly=True,
                create=False,
                readahead=False,
            )
            opened.callback(self._env.close)
            self._env.reader_check()  # a reader that was killed must not hold back the writer
            self._is_whole()
            if not self._env.stat()["entries"]:
                raise StoreError(f"{folder} is empty: no store process has opened it yet")
            self._open_tables(create=False)
            with self.read() as txn:
                found = self.number(txn, "schema", SCHEMA)
            check_schema(folder, found)
            self._opened = opened.pop_all()

    def _is_whole(self) -> None:
        """Reading past the end of a truncated file would kill the process."""
        page, pages = self._env.stat()["psize"], self._env.info()["last_pgno"] + 1
        found = (self.folder / "data.mdb").stat().st_size // page
        if pages - found > min(SLACK, pages // 16):
            raise StoreDamaged(
                f"{self.folder / 'data.mdb'} was cut: {pages} pages were written, {found} are there; copy it again,"
                " while its run is not alive"
            )

    @contextlib.contextmanager
    def read(self) -> Iterator[Any]:
        with self._explained(), self._env.begin(buffers=True) as txn:
            yield txn

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (PermissionError, lmdb.ReadonlyError):
            raise StoreError(
                f"{self.folder} belongs to {owner(self.folder)}: you must be able to read data.mdb and write"
                " lock.mdb; ask for that, or for a file of `rhymed history export`"
            ) from None
        except (lmdb.Error, struct.error) as error:
            what = str(error).removeprefix(f"{self.folder}: ")
            if TWIN in what:
                raise StoreError(
                    f"{self.folder} is open in a process with our process id ({os.getpid()}), in another container:"
                    " LMDB identifies readers by it; try again, or use a container that shares its pids (pid: ...)"
                ) from None
            raise StoreDamaged(f"{self.folder} is damaged ({what}); check the disk, and restore data.mdb") from None

    def close(self) -> None:
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_schema(folder: Path, found: int) -> None:
    """Raises `StoreError` for a folder that another release wrote."""
    if found != SCHEMA:
        raise StoreError(
            f"{folder} is of schema {found}, this release reads and writes schema {SCHEMA} only: use the release that"
            " wrote it, or a new run"
        )


def owner(path: Path) -> str:
    """The user who owns a path, or the nearest visible folder above it."""
    for place in (path, *path.parents):
        with contextlib.suppress(OSError, KeyError):
            return place.owner()
    return "another user"
