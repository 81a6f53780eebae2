"""A byte stream in one key-value table: append, and read any span. Keys are positions, values are pieces.

Why not one value per sample: a value above ~2 KB takes pages of its own and wastes half a page; here a blob is cut
into pieces that fill pages exactly and small rests that share pages, and keys only grow, so pages stay full. Knows
nothing of what the bytes mean.
"""

from __future__ import annotations

from typing import Any

from rhymed.core.errors import StoreDamaged

KEY_BYTES = 8
PAGE_HEADER = 16
NODE_HEADER = 8
PIECE_PAGES = 16  # longest run of pages for one piece: free runs of this size are easily found again


class Stream:
    """`page_bytes` is the database's page size, `table` its handle of the table."""

    def __init__(self, table: Any, page_bytes: int) -> None:
        self._table = table
        self._page = page_bytes
        # LMDB keeps a node inside a leaf page if two of them fit (me_nodemax), else on overflow pages.
        self._inline = ((page_bytes - PAGE_HEADER) // 2 & ~1) - 2 - NODE_HEADER - KEY_BYTES

    def append(self, txn: Any, data: bytes) -> int:
        """Returns the position of the first byte."""
        with txn.cursor(self._table) as cursor:
            start = position = _end(cursor) if cursor.last() else 0
            pieces, view = [], memoryview(data)
            while view:
                size = self._piece(len(view))
                pieces.append((position.to_bytes(KEY_BYTES, "big"), view[:size]))
                position, view = position + size, view[size:]
            cursor.putmulti(pieces, append=True)
        return start

    def _piece(self, left: int) -> int:
        """Bytes of the next piece: whole pages while they are full, then what fits a shared page."""
        pages = min((left + PAGE_HEADER) // self._page, PIECE_PAGES)
        return pages * self._page - PAGE_HEADER if pages else min(left, self._inline)

    def read(self, cursor: Any, position: int, size: int, what: object) -> Any:
        """`size` bytes from `position`; a view into the map (valid as long as the transaction) or a copy.

        `cursor` is on this table. Raises `StoreDamaged` naming `what` where the stream has a hole.
        """
        key = position.to_bytes(KEY_BYTES, "big")
        if not (cursor.set_range(key) and cursor.key() == key):
            # Inside the piece before; at the table's end set_range leaves the cursor nowhere.
            _ = cursor.prev() if cursor.key() else cursor.last()
        found, offset = [], position - int.from_bytes(cursor.key(), "big")
        while size:
            piece = cursor.value()[offset : offset + size] if cursor.key() and offset >= 0 else b""
            if not piece:
                raise StoreDamaged(f"{what}: its bytes are not in the stream at {position}")
            found.append(piece)
            size, offset = size - len(piece), 0
            cursor.next()
        return found[0] if len(found) == 1 else b"".join(found)


def _end(cursor: Any) -> int:
    return int.from_bytes(cursor.key(), "big") + len(cursor.value())
