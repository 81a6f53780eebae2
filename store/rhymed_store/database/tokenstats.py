"""Writes what training computed of each token, within a bound: the oldest steps make room for new ones.

Keyed as the journal, so that a step is one range. Invariant: what is there belongs to the run as it is now: numbers
of a step go when it, or an earlier one, is trained again. Nothing in a run depends on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from rhymed.errors import MalformedMessage, UnknownSample
from rhymed.messages import EVAL, PutTokenStats
from rhymed_store.codec import records, tokenstats
from rhymed_store.database.transactions import Batch, Database

TABLE = "tokenstats"
PAGES = 2  # of an entry in addition to its bytes: it begins on a page of its own


class Entry(NamedTuple):
    """A sample's numbers, ready to be written."""

    sample: bytes  # its key
    length: int  # response tokens
    value: bytes


def ready(message: PutTokenStats, frame: Any, level: int) -> list[Entry]:
    """Check and compress: the heavy part of the write. Raises `MalformedMessage`."""
    if len(message.lengths) != len(message.samples) or min(message.lengths, default=0) < 0:
        raise MalformedMessage(f"PutTokenStats: {len(message.lengths)} lengths of {len(message.samples)} samples")
    if len(frame) != tokenstats.TOKEN_BYTES * sum(message.lengths) or not -(1 << 31) <= message.version < 1 << 31:
        raise MalformedMessage(f"PutTokenStats: {len(frame)} bytes, {sum(message.lengths)} tokens announced")
    entries, start, view = [], 0, memoryview(frame)
    for sample, length in zip(message.samples, message.lengths, strict=True):
        if not 0 <= sample.step < EVAL:
            raise MalformedMessage(f"PutTokenStats: sample {sample} is never trained")
        end = start + tokenstats.TOKEN_BYTES * length
        value = tokenstats.pack(records.journal_key(sample), message.version, view[start:end], level)
        entries.append(Entry(records.sample_key(sample), length, value))
        start = end
    return entries


class TokenStatsWrites:
    """`limit_bytes`: of the table's pages; 0: nothing is kept."""

    def __init__(self, database: Database, limit_bytes: int) -> None:
        self._database, self._limit = database, limit_bytes

    def put(self, batch: Batch, message: PutTokenStats, entries: Sequence[Entry]) -> None:
        """Raises `UnknownSample`, `MalformedMessage`, `StoreFull`."""
        txn, table = batch.txn, self._database.tables[TABLE]
        for entry, sample in zip(entries, message.samples, strict=True):
            value = txn.get(entry.sample, db=self._database.tables["samples"])
            if value is None:
                raise UnknownSample(f"sample {sample} was never stored")
            if records.unpack_length(value) != entry.length:
                raise MalformedMessage(f"PutTokenStats: sample {sample} does not have {entry.length} tokens")
        sizes = [len(entry.value) + PAGES * self._database.page_bytes for entry in entries]
        fits = sum(sizes) <= self._limit
        if fits:
            self._database.claim_space(batch, sum(sizes))
        with txn.cursor(table) as cursor:
            if message.begins:
                _remove_from(cursor, message.version)
            if not fits:
                return
            while self._database.used_bytes(txn, TABLE) + sum(sizes) > self._limit and cursor.first():
                cursor.delete()
            for entry in entries:
                cursor.put(records.journal_of(entry.sample), entry.value)


def _remove_from(cursor: Any, step: int) -> None:
    while cursor.set_range(records.step_prefix(step)):
        cursor.delete()
