"""What makes each entry of each table sound. Sound entries are handed on, each table after those that it needs.

A sample is sound when its record, its tokens, its prompt's tokens and, where it may still be trained, its log-probs
are; where only its mask of accepted drafts is damaged, it is handed on without that. The journal follows from records
and drops: it is checked against them, and handed on as it should be. Reads every byte of a value that has a checksum.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from rhymed.core.errors import MalformedMessage, StoreDamaged
from rhymed.core.messages import EVAL
from rhymed.core.steps import is_evaluation, is_training
from rhymed_store.codec import frames, lossweights, masks, records, scoreparts, tokenstats, turns
from rhymed_store.codec.records import Record
from rhymed_store.database import partials
from rhymed_store.database.stream import KEY_BYTES
from rhymed_store.database.tables import TABLES, check_schema
from rhymed_store.database.writes import is_live
from rhymed_store.integrity.isolated import Gap, IsolatedReader, Unreadable

# Findings of a verification, its report, and the tables that it goes through.

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
                if count is None:
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


NUMBERS = ("schema", "tokens", "forgotten", "begins")  # keys of the table "meta"
WRONG = (StoreDamaged, MalformedMessage, ValueError, MemoryError, msgspec.MsgspecError)
"""What reading damaged bytes can raise."""
AT_ONCE = 256  # samples whose tokens are read in one request


class Audit:
    """One pass over all tables of an inspection."""

    def __init__(self, inspection: Inspection, folder: Path) -> None:
        self._inspection, self._report, self._folder = inspection, inspection.report, folder
        self._contexts: dict[bytes, int] = {}  # key of prompt tokens -> how many
        self._dropped: set[bytes] = set()  # sample keys
        self._logprobs: dict[bytes, tuple[int, int]] = {}  # journal key -> bytes, tokens
        self._lines: dict[bytes, bytes] = {}  # journal key -> journal line

    def run(self) -> None:
        numbers = self._meta()
        for table, judge in (
            ("prompts", _prompt),
            ("contexts", self._context),
            ("drops", self._drop),
            ("parts", scoreparts.unpack),
            ("tokenstats", _token_stats),
            ("sessions", turns.unpack_finished),
            ("turns", turns.unpack),
        ):
            for key, value in self._inspection.entries(table):
                try:
                    judge(key, value)
                except WRONG as error:
                    self._inspection.add(table, describe(table, key), str(error))
                else:
                    self._inspection.accept(table, key, value)
        self._short_lived()
        self._report.live_from = self._live_from = self._first_live(numbers)
        self._pieces()
        self._samples()
        self._left_lines()
        self._partials()
        if self._report.sound and numbers.get("tokens", 0) != self._report.tokens:
            why = f"{numbers.get('tokens', 0)} were counted, {self._report.tokens} are there"
            self._inspection.add("meta", "the number of tokens", why)

    def _meta(self) -> dict[str, int]:
        numbers: dict[str, int] = {}
        for key, value in self._inspection.entries("meta"):
            try:
                if key == b"run":
                    msgspec.json.decode(value, type=tuple[str, str])
                elif key == b"id":
                    value.decode()
                elif key.startswith(records.PREFIX):
                    records.unpack_drawn(key, value)
                elif (name := key.decode()) in NUMBERS:
                    numbers[name] = int(value)
                else:
                    raise ValueError("not a key of this table")
            except WRONG as error:
                self._inspection.add("meta", describe("meta", key), str(error))
            else:
                self._inspection.accept("meta", key, value)
        if "schema" in numbers:
            check_schema(self._folder, numbers["schema"])
        elif not self._inspection.is_new:
            self._inspection.add("meta", "'schema'", "it is missing")
        return numbers

    def _context(self, key: bytes, value: bytes) -> None:
        what = describe("contexts", key)
        raw = frames.unpack_bytes(value[1:], what)
        width = value[0]
        if width not in (2, 3, 4) or len(raw) % width or len(key) != 12:
            raise StoreDamaged("its tokens have no width")
        tokens = np.empty(len(raw) // width, np.uint32)
        records.unpack_tokens(value[1:], width, tokens, what)
        if zlib.crc32(tokens.tobytes()).to_bytes(4, "big") != key[8:]:
            raise StoreDamaged("its tokens are not those of its key")
        self._contexts[key] = len(tokens)

    def _drop(self, key: bytes, value: bytes) -> None:
        value.decode()
        if len(key) != records.SAMPLE_KEY_BYTES:
            raise StoreDamaged("its key is not a sample's")
        self._dropped.add(key)

    def _short_lived(self) -> None:
        """What the next checkpoint deletes: log-probs by their checksums, journal lines as they are."""
        for key, value in self._inspection.entries("logprobs"):
            what = describe("logprobs", key)
            try:
                tokens = lossweights.tokens_of(value)
                records.unpack_logprobs(value, tokens, what)
                lossweights.unpack(value, tokens, what)
                self._logprobs[key] = len(value), tokens
            except WRONG as error:
                self._inspection.add("logprobs", what, str(error))
        self._lines.update(self._inspection.entries("journal"))

    def _first_live(self, numbers: dict[str, int]) -> int:
        """The first step that no checkpoint covers; where that cannot be read, the first with an entry left."""
        if "forgotten" in numbers or not self._inspection.is_damaged("meta"):
            return numbers.get("forgotten", 0)
        steps = [int.from_bytes(key[:4], "big") - records.STEP_BIAS for key in (*self._logprobs, *self._lines)]
        return min((step for step in steps if is_training(step)), default=EVAL - 1)

    def _pieces(self) -> None:
        pieces = (piece for piece in self._inspection.sizes("tokens") if len(piece[0]) == KEY_BYTES)
        self._sizes = {int.from_bytes(key, "big"): size for key, size in pieces}
        self._starts = sorted(self._sizes)

    def _samples(self) -> None:
        entries = self._inspection.entries("samples")
        while batch := list(islice(entries, AT_ONCE)):
            unpacked = list(self._unpack(batch))
            spans = [(record.position, record.size) for _, record in unpacked]
            spans += [(record.position + record.size, record.drafted) for _, record in unpacked]
            blobs = self._read(spans)
            for (key, record), frame, mask in zip(unpacked, blobs, blobs[len(unpacked) :], strict=False):
                self._sample(key, record, frame, mask)

    def _unpack(self, entries: Sequence[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, Record]]:
        for key, value in entries:
            try:
                yield key, records.unpack_record(key, value)
            except WRONG as error:
                self._inspection.add("samples", describe("samples", key), str(error))

    def _sample(self, key: bytes, record: Record, frame: bytes | None, mask: bytes | None) -> None:
        """`frame`: its tokens as they lie in the stream, `mask`: its accepted drafts; None: not readable."""
        name = describe("samples", key)
        try:
            _check_frame(frame, record, name)
            self._check_needs(key, record)
        except WRONG as error:
            self._inspection.add("samples", name, str(error))
            return
        assert frame is not None, "checked"
        try:
            if record.drafted:
                masks.unpack(mask or b"", record.length, name)
        except WRONG as error:
            self._inspection.add("samples", name, str(error))
            record, mask = record._replace(drafted=0), b""
        self._inspection.accept("samples", key, (record, frame + (mask or b"")))
        self._report.tokens += record.length
        self._hand_on(key, record)

    def _read(self, spans: Sequence[tuple[int, int]]) -> list[bytes | None]:
        """Spans of the stream, by position and size. None: not readable."""
        parts = [self._parts(*span) for span in spans]
        flat = [part for own in parts for part in own or ()]
        read = iter(self._inspection.reader.read("tokens", flat) if flat else [])
        blobs: list[bytes | None] = []
        for own in parts:
            pieces = [next(read) for _ in own or ()]
            blobs.append(None if own is None or None in pieces else b"".join(filter(None, pieces)))
        return blobs

    def _parts(self, position: int, size: int) -> list[tuple[bytes, int, int]] | None:
        """The pieces that a span lies in: key, first byte, number of bytes. None where one is missing."""
        parts, at = [], bisect_right(self._starts, position) - 1
        while size:
            start = self._starts[at] if 0 <= at < len(self._starts) else -1
            offset = position - start
            if start < 0 or offset >= self._sizes[start]:
                return None
            part = min(size, self._sizes[start] - offset)
            parts.append((start.to_bytes(KEY_BYTES, "big"), offset, part))
            position, size, at = position + part, size - part, at + 1
        return parts

    def _check_needs(self, key: bytes, record: Record) -> None:
        if self._contexts.get(key[:8] + record.prompt_check.to_bytes(4, "big")) != record.prompt_length:
            raise StoreDamaged("the tokens of its prompt are damaged or missing")
        step, journal = records.step_of(key), records.journal_of(key)
        if record.state == "dropped" or is_evaluation(step) or not is_live(step, self._live_from):
            return
        if self._logprobs.get(journal, (0, -1))[1] != record.length:
            raise StoreDamaged("its log-probs are damaged or missing")

    def _hand_on(self, key: bytes, record: Record) -> None:
        journal, line = records.journal_of(key), record.journal()
        written = self._lines.pop(journal, None)
        if not is_live(records.step_of(key), self._live_from):
            return
        if written != line:
            why = "its line is missing" if written is None else "its line is not what its record says"
            self._inspection.add("journal", describe("samples", key), why)
        self._inspection.accept("journal", journal, line)
        if (found := self._logprobs.pop(journal, None)) is not None:
            (logprobs,) = self._inspection.reader.read("logprobs", [(journal, 0, found[0])])
            if logprobs is not None:
                self._inspection.accept("logprobs", journal, logprobs)
        self._dropped.discard(key)

    def _left_lines(self) -> None:
        """What was dropped and never came has no record, but a line; nothing else has one."""
        line = records.pack_journal("dropped")
        for key in sorted(self._dropped):
            journal = records.journal_of(key)
            if is_live(records.step_of(key), self._live_from):
                if self._lines.pop(journal, None) != line and not self._inspection.is_damaged("samples"):
                    self._inspection.add("journal", describe("drops", key), "its line does not say dropped")
                self._inspection.accept("journal", journal, line)
        if not self._inspection.is_damaged("samples"):
            for table, left in (("journal", self._lines), ("logprobs", self._logprobs)):
                for key in left:
                    self._inspection.add(table, describe(table, key), "there is no such sample")

    def _partials(self) -> None:
        ends: dict[bytes, int] = {}  # journal key -> tokens so far
        for key, value in self._inspection.entries("partials"):
            name, low = describe("partials", key), key[:-4]
            try:
                tokens = partials.unpack(value, f"the beginning of {name}")
            except WRONG as error:
                self._inspection.add("partials", name, str(error))
                continue
            if partials.position(key) == ends.get(low, 0):
                ends[low] = ends.get(low, 0) + len(tokens)
                self._inspection.accept("partials", key, value)
            elif not self._inspection.is_damaged("partials"):
                self._inspection.add("partials", name, f"its beginning has a gap at {ends.get(low, 0)}")


def _check_frame(frame: bytes | None, record: Record, name: str) -> None:
    """Raises `StoreDamaged` unless the tokens are those that were written."""
    if frame is None:
        raise StoreDamaged(f"its tokens are not in the stream at {record.position}")
    frames.unpack_bytes(frame, name, record.width * record.length)
    if sum(count for _, count in record.versions) != record.length:
        raise StoreDamaged(f"its versions are not of {record.length} tokens")


def _prompt(key: bytes, value: bytes) -> None:
    msgspec.json.decode(frames.unpack_bytes(value, describe("prompts", key)), type=dict[str, Any])


def _token_stats(key: bytes, value: bytes) -> None:
    tokenstats.unpack(key, value, describe("tokenstats", key))
