"""The file of a database, page by page, with every bound checked: what LMDB itself would trust, and crash on.

LMDB keeps no checksums and follows every page number that it finds, so a damaged file can end the process. Here it is
read as bytes, by its layout (data version 1, as in mdb.c of 0.9). Invariant: nothing that stands in the file makes
this module read outside of it, loop, or raise anything but `Broken`; a part that cannot be read is a `Hole` with the
keys that it may have held. Knows nothing of what keys and values mean.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

MAGIC, VERSION = 0xBEEFC0DE, 1
BRANCH, LEAF, OVERFLOW, META = 1, 2, 4, 8  # flags of a page
BIG, SUB = 1, 2  # flags of a node: its value has pages of its own; its value is a table
DEEPEST = 32  # levels of a tree, as LMDB's own cursors
NOWHERE = (1 << 64) - 1  # page number of an empty tree's root

_PAGE = struct.Struct("<QHHHH")  # number, padding, flags, lower, upper
_PAGE_COUNT = struct.Struct("<I")  # of an overflow page, in the place of lower and upper
_NODE = struct.Struct("<HHHH")  # low and high half of size or page, flags or page, length of the key
_TREE = struct.Struct("<IHHQQQQQ")  # padding, flags, depth, branch, leaf and overflow pages, entries, root
_META = struct.Struct("<IIQQ")  # magic, version, address, map size; then two trees, last page, transaction
_LAST = struct.Struct("<QQ")
_POINTERS = _PAGE.size

Order: TypeAlias = Callable[[bytes], Any]


class Broken(Exception):
    """What stands in the file is not what LMDB writes. Says where."""


class Tree(NamedTuple):
    flags: int
    entries: int
    root: int  # page number


class Meta(NamedTuple):
    page: int  # 0 or 1
    map_bytes: int
    page_bytes: int
    free: Tree
    main: Tree
    last_page: int
    transaction: int


class Node(NamedTuple):
    """A key and where its value is."""

    key: bytes
    flags: int
    place: int  # byte of the file
    size: int
    own_page: int  # first of the value's own pages, 0: it is in the leaf


class Hole(NamedTuple):
    """Keys from `low` on, below `high` (None: to the end), may be missing here."""

    low: bytes
    high: bytes | None
    why: str


class Pages:
    """A context manager. `page_bytes` and `last_page` are those of the snapshot that `choose` took."""

    def __init__(self, file: Path) -> None:
        self._file = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        self.file_bytes = os.fstat(self._file).st_size
        self.seen = bytearray()  # of each page, whether it has a place in what was walked

    def close(self) -> None:
        os.close(self._file)

    def __enter__(self) -> Pages:
        return self

    def __exit__(self, *ended: object) -> None:
        self.close()

    def metas(self) -> tuple[list[Meta], list[str]]:
        """The headers that can be read, newest first; and what is wrong with the others."""
        found, wrong, page_bytes = [], [], 0
        for number in (0, 1):
            try:
                found.append(self._meta(number, page_bytes))
                page_bytes = found[0].page_bytes
            except Broken as error:
                wrong.append(str(error))
                page_bytes = page_bytes or os.sysconf("SC_PAGE_SIZE")
        return sorted(found, key=lambda meta: -meta.transaction), wrong

    def _meta(self, number: int, page_bytes: int) -> Meta:
        data = self.read(number * page_bytes, _PAGE.size + _META.size + 2 * _TREE.size + _LAST.size)
        own, _, flags, _, _ = _PAGE.unpack_from(data)
        magic, version, _, map_bytes = _META.unpack_from(data, _PAGE.size)
        trees = [_TREE.unpack_from(data, _PAGE.size + _META.size + at) for at in (0, _TREE.size)]
        last, transaction = _LAST.unpack_from(data, _PAGE.size + _META.size + 2 * _TREE.size)
        size = trees[0][0]
        if own != number or not flags & META or magic != MAGIC or version != VERSION:
            raise Broken(f"header page {number} is not one of LMDB's")
        if size not in (1 << bits for bits in range(9, 17)) or (page_bytes and number and size != page_bytes):
            raise Broken(f"header page {number} tells of pages of {size} bytes")
        free, main = (Tree(tree[1], tree[6], tree[7]) for tree in trees)
        return Meta(number, map_bytes, size, free, main, last, transaction)

    def choose(self, meta: Meta) -> None:
        self.page_bytes, self.last_page = meta.page_bytes, meta.last_page
        self.seen = bytearray(min(meta.last_page + 1, self.file_bytes // meta.page_bytes + 1) + 1)

    def read(self, place: int, size: int) -> bytes:
        """Raises `Broken` where the file ends before, or the disk cannot read."""
        try:
            data = os.pread(self._file, size, place)
        except (OSError, OverflowError) as error:
            raise Broken(f"byte {place} cannot be read: {error}") from None
        if len(data) != size:
            raise Broken(f"byte {place + len(data)} is behind the end of the file")
        return data

    def value(self, node: Node) -> bytes:
        return self.read(node.place, node.size)

    def tables(self, meta: Meta) -> tuple[dict[str, Tree], list[Hole]]:
        """Of the main tree: every table by its name."""
        found, holes = {}, []
        for part in self.nodes(meta.main):
            if isinstance(part, Hole):
                holes.append(part)
            elif part.flags & SUB and part.size == _TREE.size:
                tree = _TREE.unpack(self.value(part))
                found[part.key.decode(errors="replace")] = Tree(tree[1], tree[6], tree[7])
        return found, holes

    def nodes(self, tree: Tree, order: Order | None = None) -> Iterator[Node | Hole]:
        """In the order of their keys, `order` (None: as bytes) being what these are sorted by."""
        if tree.root != NOWHERE:
            yield from self._below(tree.root, b"", None, 0, order or bytes)

    def _below(self, number: int, low: bytes, high: bytes | None, depth: int, order: Order) -> Iterator[Node | Hole]:
        try:
            page, flags, pointers = self._page(number)
            if depth > DEEPEST or not flags & (BRANCH | LEAF):
                raise Broken(f"page {number} is not part of a tree")
            if not pointers:
                raise Broken(f"page {number} is empty")
            cells = [self._cell(page, at, number) for at in pointers]
        except Broken as error:
            yield Hole(low, high, str(error))
            return
        if flags & LEAF:
            yield from self._leaf(page, number, cells, low, high, order)
            return
        keys = [low, *(key for key, _, _, _ in cells[1:]), high]
        for (_, halves, more, _), first, end in zip(cells, keys, keys[1:], strict=False):
            assert first is not None, "only the last one has no end"
            yield from self._below(halves | more << 32, first, end, depth + 1, order)

    def _leaf(
        self, page: bytes, number: int, cells: list[Any], low: bytes, high: bytes | None, order: Order
    ) -> Iterator[Node | Hole]:
        before: bytes | None = None
        for key, size, flags, at in cells:
            rank = order(key)
            early = rank < order(low) if before is None else rank <= order(before)
            if early or (high is not None and rank >= order(high)):
                yield Hole(low if before is None else before, high, f"page {number}: its keys are out of order")
            before = key
            try:
                yield self._node(page, number, key, size, flags, at)
            except Broken as error:
                yield Hole(key, key + b"\0", str(error))

    def _node(self, page: bytes, number: int, key: bytes, size: int, flags: int, at: int) -> Node:
        if not flags & BIG:
            if at + size > len(page):
                raise Broken(f"page {number}: a value reaches over its end")
            return Node(key, flags, number * self.page_bytes + at, size, 0)
        if at + 8 > len(page):
            raise Broken(f"page {number}: a value reaches over its end")
        first = int.from_bytes(page[at : at + 8], "little")
        count = (size + _PAGE.size + self.page_bytes - 1) // self.page_bytes
        self._claim(first, count)
        header = self.read(first * self.page_bytes, _PAGE.size)
        own, _, own_flags, _, _ = _PAGE.unpack(header)
        if own != first or not own_flags & OVERFLOW or _PAGE_COUNT.unpack_from(header, 12)[0] < count:
            raise Broken(f"page {first} does not hold the value that page {number} tells of")
        return Node(key, flags, first * self.page_bytes + _PAGE.size, size, first)

    def _page(self, number: int) -> tuple[bytes, int, tuple[int, ...]]:
        """Its bytes, its flags, and where its nodes begin."""
        self._claim(number, 1)
        page = self.read(number * self.page_bytes, self.page_bytes)
        own, _, flags, lower, upper = _PAGE.unpack_from(page)
        if own != number:
            raise Broken(f"page {number} says that it is page {own}")
        if not _POINTERS <= lower <= upper <= len(page) or lower % 2:
            raise Broken(f"page {number}: its header is damaged")
        return page, flags, struct.unpack_from(f"<{(lower - _POINTERS) // 2}H", page, _POINTERS)

    def _cell(self, page: bytes, at: int, number: int) -> tuple[bytes, int, int, int]:
        """Key, size of the value (or low part of a page number), flags, where the value begins."""
        if at < _POINTERS or at + _NODE.size > len(page):
            raise Broken(f"page {number}: a node lies outside")
        low, high, flags, length = _NODE.unpack_from(page, at)
        begin = at + _NODE.size + length
        if begin > len(page):
            raise Broken(f"page {number}: a key reaches over its end")
        return page[at + _NODE.size : begin], low | high << 16, flags, begin

    def _claim(self, first: int, count: int) -> None:
        """Every page has one place: this also ends a walk in a circle."""
        if first < 2 or first + count > self.last_page + 1 or first + count >= len(self.seen):
            raise Broken(f"page {first} is not one of the file's {self.last_page + 1}")
        if any(self.seen[first : first + count]):
            raise Broken(f"page {first} is in two places")
        self.seen[first : first + count] = b"\1" * count
