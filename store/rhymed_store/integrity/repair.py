"""A new database of all that is sound in a damaged one, and copies of sound ones.

Invariants: the damaged file is kept; the new one takes its place in one step, after it was verified itself and is on
the disk; who is killed in between leaves the old one where it was.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb

from rhymed.atomic import sync_folder
from rhymed.errors import StoreDamaged, StoreError
from rhymed_store.codec.records import SCHEMA
from rhymed_store.database.pages import Broken
from rhymed_store.database.precheck import damaged, walk
from rhymed_store.database.stream import Stream
from rhymed_store.database.tables import TABLES
from rhymed_store.database.transactions import locked
from rhymed_store.integrity.findings import Report
from rhymed_store.integrity.verify import snapshot, verify

BATCH_BYTES = 64 << 20  # of one transaction
LEAST_MAP_BYTES = 1 << 30  # of the new file: of address space, not of disk


def repair(folder: Path) -> tuple[Report, Path | None]:
    """What was found, and where the damaged file is now; None: nothing is damaged, and nothing was changed.

    Raises `StoreError` while a store has the folder, and where there is no room beside the old file.
    """
    with locked(folder), _beside(folder) as new:
        try:
            report = _rebuild(folder, new)
        except lmdb.Error as error:
            raise StoreError(f"{new} cannot be written, {folder} is as it was: {error}") from None
        if report.sound:
            return report, None
        left = verify(new)
        if not left.sound:
            raise StoreDamaged(f"{new} is damaged as soon as it is written ({left.findings[0]}): check the disk")
        sync_folder(new)
        kept = _keep(folder)
        os.replace(new / "data.mdb", folder / "data.mdb")
        (folder / "lock.mdb").unlink(missing_ok=True)  # it tells of the old file's transactions
        sync_folder(folder)
    return report, kept


def copy(folder: Path, target: Path) -> Report:
    """A compact copy in the empty folder `target`, verified, while others read and write. Raises `StoreDamaged`."""
    with snapshot(folder) as (pages, meta, wrong):  # LMDB itself would follow a damaged tree blindly
        try:
            if wrong:
                raise Broken(wrong[0])
            walk(pages, meta, float("inf"))
        except Broken as error:
            raise damaged(folder, str(error)) from None
    try:
        with lmdb.open(str(folder), map_size=0, readonly=True, create=False, readahead=False) as env:
            env.copy(str(target), compact=True)
    except lmdb.Error as error:
        raise StoreError(f"{folder} cannot be copied to {target}: {error}") from None
    report = verify(target)
    if not report.sound:
        table, name, why = report.findings[0]
        raise damaged(folder, f"table {table!r}: {name}: {why}")
    sync_folder(target)
    return report


@contextlib.contextmanager
def _beside(folder: Path) -> Iterator[Path]:
    """An empty folder on the same disk; what an earlier repair left there goes."""
    new = folder / "repair.tmp"
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    try:
        yield new
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _rebuild(folder: Path, new: Path) -> Report:
    with snapshot(folder) as (_, meta, _):
        map_bytes = max(meta.map_bytes, LEAST_MAP_BYTES, 2 * (folder / "data.mdb").stat().st_size)
    with lmdb.open(str(new), map_size=map_bytes, max_dbs=len(TABLES), sync=False, readahead=False) as env:
        writer = _Writer(env)
        report = verify(folder, writer.keep)
        writer.end({"schema": SCHEMA, "tokens": report.tokens, "forgotten": report.live_from})
        env.sync(True)
    return report


class _Writer:
    """Takes what a verification finds sound, in large transactions."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self._tables = {name: env.open_db(name.encode()) for name in TABLES}
        self._stream = Stream(self._tables["tokens"], env.stat()["psize"])
        self._txn, self._bytes = env.begin(write=True), 0

    def keep(self, table: str, key: bytes, value: Any) -> None:
        if table == "samples":
            record, frame = value
            self._bytes += len(frame)
            value = record._replace(position=self._stream.append(self._txn, frame)).pack(key)
        self._txn.put(key, value, db=self._tables[table])
        self._bytes += len(key) + len(value)
        if self._bytes > BATCH_BYTES:
            self._txn.commit()
            self._txn, self._bytes = self._env.begin(write=True), 0

    def end(self, numbers: dict[str, int]) -> None:
        for name, number in numbers.items():
            self._txn.put(name.encode(), str(number).encode(), db=self._tables["meta"])
        self._txn.commit()


def _keep(folder: Path) -> Path:
    """The old file under another name as well."""
    number = 1
    while (kept := folder / f"data.mdb.damaged-{number}").exists():
        number += 1
    try:
        os.link(folder / "data.mdb", kept)
    except OSError:  # a file system without links
        shutil.copyfile(folder / "data.mdb", kept)
    return kept
