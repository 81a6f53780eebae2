"""Everything that a database holds, read and held against its checksums; what is damaged gets its name.

Reads the file itself (see `pages`), so no damage can end the process, and works beside a living store: a read
transaction keeps the pages of its snapshot. What is sound is handed on, so a repair is a verification whose findings
are left out. Knows not what is done with either.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import lmdb
import numpy as np

from rhymed.errors import StoreDamaged, StoreError
from rhymed_store import records
from rhymed_store.look import FREE, missing, native
from rhymed_store.pages import NOWHERE, Broken, Hole, Meta, Node, Pages, Tree

Keep = Callable[[str, bytes, Any], object]
"""Gets table, key and value of what is sound; of "samples" the value is (record, token frame and mask)."""


class Finding(NamedTuple):
    table: str
    name: str  # of what is damaged
    why: str


@dataclass
class Report:
    counts: Counter[str] = field(default_factory=Counter)  # table -> sound entries
    tokens: int = 0  # response tokens of the sound samples
    live_from: int = 0  # first step that no checkpoint holds
    findings: list[Finding] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        return not self.findings


def verify(folder: Path, keep: Keep = lambda *_: None) -> Report:
    """Read everything. Raises `StoreError` where there is no database, `StoreDamaged` where nothing can be found."""
    from rhymed_store.audit import Audit

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


class Book:
    """The tables of a snapshot, entry by entry, and what was found in them so far."""

    def __init__(self, pages: Pages, meta: Meta, keep: Keep) -> None:
        self.pages, self.keep, self.report = pages, keep, Report()
        self._tables, holes = pages.tables(meta)
        for why in (*(hole.why for hole in holes), *missing(self._tables)):
            self.find("meta", "the list of tables", why)

    @property
    def new(self) -> bool:
        """Nothing was written yet: the store that made it was killed before it could say of which schema it is."""
        return not any(tree.entries for tree in self._tables.values())

    def find(self, table: str, name: str, why: str) -> None:
        self.report.findings.append(Finding(table, name, why.removeprefix(f"{name}: ")))

    def sound(self, table: str, key: bytes, value: Any) -> None:
        self.report.counts[table] += 1
        self.keep(table, key, value)

    def damaged(self, table: str) -> bool:
        return any(finding.table == table for finding in self.report.findings)

    def nodes(self, table: str) -> Iterator[Node]:
        """Where the values are. What cannot be read is told."""
        tree, count = self._tables.get(table, Tree(0, 0, NOWHERE)), 0
        for part in self.pages.nodes(tree):
            if isinstance(part, Hole):
                self.find(table, f"{called(table, part.low)} to {called(table, part.high)}", part.why)
            else:
                count += 1
                yield part
        if count != tree.entries:
            self.find(table, "entries", f"{tree.entries} were written, {count} can be read")

    def entries(self, table: str) -> Iterator[tuple[bytes, bytes]]:
        for node in self.nodes(table):
            try:
                value = self.pages.value(node)
            except Broken as error:
                self.find(table, called(table, node.key), str(error))
            else:
                yield node.key, value


def called(table: str, key: bytes | None) -> str:
    """How people call what a key stands for."""
    if not key:
        return "the beginning" if key is not None else "the end"
    if table in ("samples", "drops") and len(key) == records.SAMPLE_KEY_BYTES:
        return f"sample {records.name_of(key)}"
    if table in ("journal", "logprobs", "partials") and len(key) >= records.SAMPLE_KEY_BYTES:
        return f"sample {records.sample_of(key)}"
    if table in ("prompts", "contexts") and len(key) >= 8:
        return f"prompt {key[:8].hex()}"
    if table == "tokens":
        return f"position {int.from_bytes(key, 'big')}"
    return repr(key.decode(errors="replace")) if table == "meta" else key.hex()


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
