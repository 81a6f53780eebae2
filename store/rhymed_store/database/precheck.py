"""A look at a database before LMDB opens it: whether its pages are where its trees say, however damaged the file is.

After a clean end it takes only as long as nobody notices, otherwise it is a look at every page of the trees. Values
are left to their own checksums.
"""

from __future__ import annotations

import time
from pathlib import Path

from rhymed.errors import StoreDamaged
from rhymed_store.database.pages import Broken, Hole, Meta, Pages, Tree
from rhymed_store.database.tables import LATER, SLACK, TABLES

SHORT_S = 0.2
LONG_S = 60.0  # then it ends with what it has seen
FREE = "free pages"


def look(folder: Path, *, whole: bool) -> None:
    """Raises `StoreDamaged` naming the table that cannot be read."""
    file = folder / "data.mdb"
    if not file.exists() or not file.stat().st_size:
        return
    with Pages(file) as pages:
        try:
            walk(pages, newest(pages), LONG_S if whole else SHORT_S)
        except Broken as error:
            raise damaged(folder, str(error)) from None


def walk(pages: Pages, meta: Meta, most_s: float) -> None:
    """Over the trees of a snapshot, as far as there is time. Raises `Broken` at the first hole."""
    end = time.monotonic() + most_s
    tables, holes = pages.tables(meta)
    if wrong := [*(f"the list of tables: {hole.why}" for hole in holes), *missing(tables)]:
        raise Broken(wrong[0])
    _walk(pages, FREE, meta.free, end)
    for name, tree in tables.items():
        _walk(pages, name, tree, end)


def newest(pages: Pages) -> Meta:
    """The header of the last commit, chosen. Raises `Broken` where LMDB would not open the file either."""
    metas, wrong = pages.metas()
    if wrong:
        raise Broken(wrong[0])
    meta = metas[0]
    pages.choose(meta)
    there = pages.file_bytes // meta.page_bytes
    if meta.last_page + 1 - there > min(SLACK, (meta.last_page + 1) // 16):
        raise Broken(f"the file was cut: {meta.last_page + 1} pages were written, {there} are there")
    return meta


def missing(tables: dict[str, Tree]) -> list[str]:
    """Tables that should be there: all are made before the first of them gets anything."""
    if not any(tree.entries for tree in tables.values()):
        return []
    return [f"table {name!r} is missing" for name in TABLES if name not in tables and name not in LATER]


def _walk(pages: Pages, name: str, tree: Tree, end: float) -> None:
    for part in pages.nodes(tree, native if name == FREE else None):
        if isinstance(part, Hole):
            raise Broken(f"table {name!r}: {part.why}" if name != FREE else f"list of free pages: {part.why}")
        if time.monotonic() > end:
            return


def native(key: bytes) -> int:
    """Order of the list of free pages: transaction numbers of this machine."""
    return int.from_bytes(key, "little")


def damaged(folder: Path, why: str) -> StoreDamaged:
    run = folder.parent if folder.name == "store" else folder
    return StoreDamaged(
        f"{folder} is damaged: {why}. `rhymed history verify {run}` tells what is lost, `rhymed history repair {run}`"
        " saves the rest"
    )
