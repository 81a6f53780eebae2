"""Finding, Report and the book they are written in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rhymed_store.codec import records
from rhymed_store.database.pages import NOWHERE, Broken, Hole, Meta, Node, Pages, Tree
from rhymed_store.database.precheck import missing

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
