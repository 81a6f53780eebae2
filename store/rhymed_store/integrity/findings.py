"""Findings of a verification, its report, and the tables that it goes through."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rhymed_store.codec import records
from rhymed_store.database.tables import LATER, TABLES
from rhymed_store.integrity.isolated import Gap, IsolatedReader, Unreadable

Sink = Callable[[str, bytes, Any], object]
"""Gets table, key and value of every sound entry; of "samples" the value is (record, token frame and mask)."""


class Finding(NamedTuple):
    table: str
    name: str  # of what is damaged
    why: str


@dataclass
class IntegrityReport:
    counts: Counter[str] = field(default_factory=Counter)  # table -> sound entries
    tokens: int = 0  # response tokens of the sound samples
    live_from: int = 0  # first step that no checkpoint covers
    findings: list[Finding] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        return not self.findings


class Inspection:
    """The tables of a snapshot, entry by entry. Hands sound entries to the sink and collects the findings."""

    def __init__(self, reader: IsolatedReader, sink: Sink) -> None:
        self.reader, self._sink, self.report = reader, sink, IntegrityReport()
        self._written = {table: self._count(table) for table in TABLES}
        if not self.is_new:
            for table, count in self._written.items():
                if count is None and table not in LATER:
                    self.add("meta", "the list of tables", f"table {table!r} is missing")

    def _count(self, table: str) -> int | None:
        try:
            return self.reader.count(table)
        except Unreadable as error:
            self.add("meta", "the list of tables", str(error))
            return None

    @property
    def is_new(self) -> bool:
        """Nothing was written yet: the store was killed before it wrote its schema."""
        return not any(self._written.values())

    def add(self, table: str, name: str, why: str) -> None:
        self.report.findings.append(Finding(table, name, why.removeprefix(f"{name}: ")))

    def accept(self, table: str, key: bytes, value: Any) -> None:
        self.report.counts[table] += 1
        self._sink(table, key, value)

    def is_damaged(self, table: str) -> bool:
        return any(finding.table == table for finding in self.report.findings)

    def entries(self, table: str) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values. What cannot be read is added to the findings."""
        return self._entries(table, sizes=False)

    def sizes(self, table: str) -> Iterator[tuple[bytes, int]]:
        """Keys and the sizes of their values."""
        return self._entries(table, sizes=True)

    def _entries(self, table: str, *, sizes: bool) -> Iterator[tuple[bytes, Any]]:
        written, count = self._written[table], 0
        if not written:
            return
        for part in self.reader.entries(table, sizes=sizes):
            if isinstance(part, Gap):
                self.add(table, f"{describe(table, part.low)} to {describe(table, part.high)}", part.why)
            else:
                count += 1
                yield part
        if count != written:
            self.add(table, "entries", f"{written} were written, {count} can be read")


def describe(table: str, key: bytes | None) -> str:
    if not key:
        return "the beginning" if key is not None else "the end"
    if table in ("samples", "drops", "parts", "sessions") and len(key) == records.SAMPLE_KEY_BYTES:
        return f"sample {records.name_of(key)}"
    if table in ("journal", "logprobs", "partials", "tokenstats", "turns") and len(key) >= records.SAMPLE_KEY_BYTES:
        return f"sample {records.sample_of(key)}"
    if table in ("prompts", "contexts") and len(key) >= 8:
        return f"prompt {key[:8].hex()}"
    if table == "tokens":
        return f"position {int.from_bytes(key, 'big')}"
    return repr(key.decode(errors="replace")) if table == "meta" else key.hex()
