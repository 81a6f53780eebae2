"""Verifies a database, builds a new one of everything sound in a damaged one, and copies sound ones.

Invariants: the damaged file is kept; the new one replaces it in one step, after it was verified itself and is on the
disk; a process that is killed in between leaves the old file in its place.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb

from rhymed.core.atomic import sync_folder
from rhymed.core.errors import StoreDamaged, StoreError
from rhymed_store.codec.records import SCHEMA
from rhymed_store.database.probe import check_readable, damaged, probe
from rhymed_store.database.stream import Stream
from rhymed_store.database.tables import TABLES
from rhymed_store.database.transactions import locked
from rhymed_store.integrity.checks import Audit, Finding, Inspection, IntegrityReport, Sink
from rhymed_store.integrity.isolated import IsolatedReader, Unreadable

BATCH_BYTES = 64 << 20  # of one transaction
LEAST_MAP_BYTES = 1 << 30  # of the new file: of address space, not of disk
LOST_HEADER = Finding("meta", "the file's header", "one of two is damaged")


def repair(folder: Path) -> tuple[IntegrityReport, Path | None]:
    """The findings, and where the damaged file is now; None: nothing is damaged, and nothing was changed.

    Raises `StoreError` while a store has the folder, and where there is no room next to the old file.
    """
    with locked(folder), _temporary(folder) as new:
        source = _with_headers(folder, new)
        try:
            report = _rebuild(source, new)
        except lmdb.Error as error:
            raise StoreError(f"{new} cannot be written, {folder} is as it was: {error}") from None
        if source != folder:
            report.findings.insert(0, LOST_HEADER)
        if report.sound:
            return report, None
        left = verify(new)
        if not left.sound:
            raise StoreDamaged(f"{new} is damaged as soon as it is written ({left.findings[0]}): check the disk")
        sync_folder(new)
        kept = _keep_damaged(folder)
        os.replace(new / "data.mdb", folder / "data.mdb")
        (folder / "lock.mdb").unlink(missing_ok=True)  # its readers' table is about the old file
        sync_folder(folder)
    return report, kept


def copy(folder: Path, target: Path) -> IntegrityReport:
    """Copy compactly to the empty folder `target`, and verify the copy; others may read and write meanwhile.

    Raises `StoreDamaged` where the copy would be damaged, `StoreError` where it cannot be written.
    """
    probe(folder, target=target)
    report = verify(target)
    if not report.sound:
        table, name, why = report.findings[0]
        raise damaged(folder, f"table {table!r}: {name}: {why}")
    sync_folder(target)
    return report


@contextlib.contextmanager
def _temporary(folder: Path) -> Iterator[Path]:
    """An empty folder on the same disk. Deletes what an earlier repair left there."""
    new = folder / "repair.tmp"
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    try:
        yield new
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _with_headers(folder: Path, new: Path) -> Path:
    """The folder to read from; else a copy whose headers, pages 0 and 1, are both the sound one.

    Raises `StoreDamaged` where both are damaged.
    """
    if _opens(folder):
        return folder
    copy, page = new / "source", os.sysconf("SC_PAGE_SIZE")
    copy.mkdir()
    for sound, lost in ((0, 1), (1, 0)):
        shutil.copyfile(folder / "data.mdb", copy / "data.mdb")
        with (copy / "data.mdb").open("r+b") as file:
            file.seek(sound * page)
            header = file.read(page)
            file.seek(lost * page)
            file.write(header)
        if _opens(copy):
            return copy
    raise StoreDamaged(f"{folder / 'data.mdb'}: both of its headers are damaged, nothing can be read; use a backup")


def _opens(folder: Path) -> bool:
    """Raises `StoreError` where there is no file."""
    check_readable(folder)
    try:
        IsolatedReader(folder).close()
    except StoreDamaged:
        return False
    return True


def _rebuild(folder: Path, new: Path) -> IntegrityReport:
    map_bytes = max(LEAST_MAP_BYTES, 2 * (folder / "data.mdb").stat().st_size)
    with lmdb.open(str(new), map_size=map_bytes, max_dbs=len(TABLES), sync=False, readahead=False) as env:
        writer = _Writer(env)
        report = verify(folder, writer.put)
        writer.end({"schema": SCHEMA, "tokens": report.tokens, "forgotten": report.live_from})
        env.sync(True)
    return report


class _Writer:
    """The sink of a verification: writes sound entries in large transactions."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self._tables = {name: env.open_db(name.encode()) for name in TABLES}
        self._stream = Stream(self._tables["tokens"], env.stat()["psize"])
        self._txn, self._bytes = env.begin(write=True), 0

    def put(self, table: str, key: bytes, value: Any) -> None:
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


def _keep_damaged(folder: Path) -> Path:
    """Give the old file a second name."""
    number = 1
    while (kept := folder / f"data.mdb.damaged-{number}").exists():
        number += 1
    try:
        os.link(folder / "data.mdb", kept)
    except OSError:  # a file system without links
        shutil.copyfile(folder / "data.mdb", kept)
    return kept


# Reads everything that a database holds, checks it against its checksums, and names what is damaged.
#
# Reads through a child process (see `isolated`), so damage cannot end this one, and works next to a living store: the
# child's read transaction keeps the pages of its snapshot. Sound entries go to a sink, so a repair is a verification
# whose findings are left out. Knows nothing of what is done with either.

FREE = "free pages"


def verify(folder: Path, sink: Sink = lambda *_: None) -> IntegrityReport:
    """Read everything.

    Raises `StoreError` where there is no database or one of another schema, `StoreDamaged` where LMDB cannot open it.
    """
    check_readable(folder)
    with IsolatedReader(folder) as reader:
        inspection = Inspection(reader, sink)
        Audit(inspection, folder).run()
        if inspection.report.sound:  # pages below a damaged one cannot be counted
            try:
                reader.check_pages()
            except Unreadable as error:
                inspection.add(FREE, "the list", f"pages are lost, or both free and in use: {error}")
        return inspection.report
