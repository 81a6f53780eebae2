"""Everything that a database holds, read and held against its checksums; what is damaged gets its name.

Reads the file itself (see `pages`), so no damage can end the process, and works beside a living store: a read
transaction keeps the pages of its snapshot. What is sound is handed on, so a repair is a verification whose findings
are left out. Knows not what is done with either.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import numpy as np

from rhymed.errors import StoreDamaged, StoreError
from rhymed_store.database.pages import Broken, Hole, Meta, Pages
from rhymed_store.database.precheck import FREE, native
from rhymed_store.integrity.findings import Book, Keep, Report


def verify(folder: Path, keep: Keep = lambda *_: None) -> Report:
    """Read everything. Raises `StoreError` where there is no database, `StoreDamaged` where nothing can be found."""
    from rhymed_store.integrity.checks import Audit

    with snapshot(folder) as (pages, meta, wrong):
        book = Book(pages, meta, keep)
        for why in wrong:
            book.find("meta", "the file's header", why)
        Audit(book).run()
        _check_free(book, meta)
        return book.report


@contextlib.contextmanager
def snapshot(folder: Path) -> Iterator[tuple[Pages, Meta, list[str]]]:
    """The newest state that can be read, held as it is; and what is wrong with the file's headers."""
    file = folder / "data.mdb"
    if not file.exists() or not file.stat().st_size:
        raise StoreError(f"{folder} has no data.mdb: no store process has opened it yet")
    with _hold(folder) as transaction, Pages(file) as pages:
        metas, wrong = pages.metas()
        if not metas:
            raise StoreDamaged(f"{file}: both of its headers are damaged, nothing can be found in it; use a backup")
        meta = next((meta for meta in metas if meta.transaction == transaction), metas[0])
        pages.choose(meta)
        yield pages, meta, wrong


@contextlib.contextmanager
def _hold(folder: Path) -> Iterator[int]:
    """While inside, a living writer leaves the pages of this transaction alone. -1: LMDB does not open the file."""
    try:
        env = lmdb.open(str(folder), map_size=0, readonly=True, create=False, readahead=False)
    except (lmdb.Error, OSError):
        yield -1
        return
    with env:
        env.reader_check()  # a reader that was killed must not hold back the writer
        with env.begin() as txn:
            yield txn.id()


def _check_free(book: Book, meta: Meta) -> None:
    """No page may be both in use and listed as free: the next write would destroy what it holds."""
    for part in book.pages.nodes(meta.free, native):
        try:
            if isinstance(part, Hole):
                raise Broken(part.why)
            _claim_free(book.pages, meta, np.frombuffer(book.pages.value(part), "<u8"))
        except (Broken, ValueError) as error:
            book.find(FREE, "the list", str(error))


def _claim_free(pages: Pages, meta: Meta, listed: Any) -> None:
    count = int(listed[0]) if len(listed) else -1
    if not 0 <= count < len(listed):
        raise Broken("its length is damaged")
    numbers = np.sort(listed[1 : 1 + count])
    if count and (numbers[0] < 2 or numbers[-1] > meta.last_page):
        raise Broken("it names pages that the file does not have")
    inside = numbers[numbers < len(pages.seen)].astype(np.int64)
    marks = np.frombuffer(pages.seen, np.uint8)  # a view: writing marks the pages themselves
    if (numbers[1:] == numbers[:-1]).any() or marks[inside].any():
        raise Broken("it names pages that are in use")
    marks[inside] = 1
