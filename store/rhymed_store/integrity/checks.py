"""What makes each entry of each table sound, and the sound ones handed on: a table after those that it needs.

A sample is sound when its record, its tokens, its prompt's tokens and, where it may still be trained, its log-probs
are; where only its mask of accepted drafts is damaged, it is handed on without that. The journal says nothing that
records and drops do not say: it is checked against them, and handed on as it should be. Reads every byte of a value
that has a checksum.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from typing import Any

import msgspec
import numpy as np

from rhymed.errors import MalformedMessage, StoreDamaged
from rhymed.messages import EVAL
from rhymed_store.codec import frames, masks, records
from rhymed_store.codec.records import SCHEMA, Record
from rhymed_store.database import partials
from rhymed_store.database.pages import Broken, Node
from rhymed_store.database.writes import is_live
from rhymed_store.integrity.findings import Book, called

NUMBERS = ("schema", "tokens", "forgotten")  # in the table of what the folder is
WRONG = (StoreDamaged, Broken, MalformedMessage, ValueError, MemoryError, msgspec.MsgspecError)
"""What reading damaged bytes can raise."""


class Audit:
    def __init__(self, book: Book) -> None:
        self._book, self._report = book, book.report
        self._contexts: dict[bytes, int] = {}  # key of prompt tokens -> how many
        self._dropped: set[bytes] = set()  # sample keys
        self._logprobs: dict[bytes, Node] = {}  # journal key -> where they are
        self._lines: dict[bytes, bytes] = {}  # journal key -> what the journal says

    def run(self) -> None:
        numbers = self._meta()
        for table, judge in (("prompts", _prompt), ("contexts", self._context), ("drops", self._drop)):
            for key, value in self._book.entries(table):
                try:
                    judge(key, value)
                except WRONG as error:
                    self._book.find(table, called(table, key), str(error))
                else:
                    self._book.sound(table, key, value)
        self._passing()
        self._report.live_from = self._live_from = self._first_live(numbers)
        self._pieces()
        self._samples()
        self._left_lines()
        if numbers.get("schema", SCHEMA) > 1:  # the first one's looked otherwise
            self._partials()
        if self._report.sound and numbers.get("tokens", 0) != self._report.tokens:
            why = f"{numbers.get('tokens', 0)} were counted, {self._report.tokens} are there"
            self._book.find("meta", "the number of tokens", why)

    def _meta(self) -> dict[str, int]:
        numbers: dict[str, int] = {}
        for key, value in self._book.entries("meta"):
            try:
                if key == b"run":
                    msgspec.json.decode(value, type=tuple[str, str])
                elif (name := key.decode()) in NUMBERS:
                    numbers[name] = int(value)
                else:
                    raise ValueError("nobody writes that")
            except WRONG as error:
                self._book.find("meta", called("meta", key), str(error))
            else:
                self._book.sound("meta", key, value)
        if "schema" not in numbers and not self._book.new:
            self._book.find("meta", "'schema'", "it is missing")
        return numbers

    def _context(self, key: bytes, value: bytes) -> None:
        what = called("contexts", key)
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
            raise StoreDamaged("its key is none of a sample")
        self._dropped.add(key)

    def _passing(self) -> None:
        """What the next checkpoint makes needless: log-probs by their checksums, journal lines as they are."""
        for node in self._book.nodes("logprobs"):
            what = called("logprobs", node.key)
            try:
                value = self._book.pages.value(node)
                records.unpack_logprobs(value, (len(value) - 4) // 4, what)
                self._logprobs[node.key] = node
            except WRONG as error:
                self._book.find("logprobs", what, str(error))
        self._lines.update(self._book.entries("journal"))

    def _first_live(self, numbers: dict[str, int]) -> int:
        """The first step that no checkpoint holds; where that cannot be read, the first that has something left."""
        if "forgotten" in numbers or not self._book.damaged("meta"):
            return numbers.get("forgotten", 0)
        steps = [int.from_bytes(key[:4], "big") - records.STEP_BIAS for key in (*self._logprobs, *self._lines)]
        return min((step for step in steps if 0 <= step < EVAL), default=EVAL - 1)

    def _pieces(self) -> None:
        """Where every piece of the token stream is, by position."""
        nodes = sorted((int.from_bytes(node.key, "big"), node) for node in self._book.nodes("tokens"))
        self._starts, self._nodes = [start for start, _ in nodes], [node for _, node in nodes]

    def _samples(self) -> None:
        for key, value in self._book.entries("samples"):
            name = called("samples", key)
            try:
                record = records.unpack_record(key, value)
                frame = self._frame(record, name)
                self._check_needs(key, record)
            except WRONG as error:
                self._book.find("samples", name, str(error))
                continue
            record, mask = self._mask(record, name)
            self._book.sound("samples", key, (record, frame + mask))
            self._report.tokens += record.length
            self._hand_on(key, record)

    def _frame(self, record: Record, name: str) -> bytes:
        """Its tokens as they lie in the stream, once they are known to be those that were written."""
        frame = self._read(record.position, record.size)
        if len(frames.unpack_bytes(frame, name)) != record.width * record.length:
            raise StoreDamaged(f"its tokens are not {record.length}")
        if sum(count for _, count in record.versions) != record.length:
            raise StoreDamaged(f"its versions are not of {record.length} tokens")
        return frame

    def _mask(self, record: Record, name: str) -> tuple[Record, bytes]:
        """Of its accepted drafts, as it lies in the stream; where it is damaged, the record without it."""
        if not record.drafted:
            return record, b""
        try:
            mask = self._read(record.position + record.size, record.drafted)
            masks.unpack(mask, record.length, name)
        except WRONG as error:
            self._book.find("samples", name, str(error))
            return record._replace(drafted=0), b""
        return record, mask

    def _read(self, position: int, size: int) -> bytes:
        """From the stream."""
        found, at = b"", bisect_right(self._starts, position) - 1
        while len(found) < size:
            place = position + len(found)
            offset = place - self._starts[at] if 0 <= at < len(self._starts) else -1
            if not 0 <= offset < self._nodes[at].size:
                raise StoreDamaged(f"its tokens are not in the stream at {place}")
            node = self._nodes[at]
            part = min(size - len(found), node.size - offset)
            found, at = found + self._book.pages.read(node.place + offset, part), at + 1
        return found

    def _check_needs(self, key: bytes, record: Record) -> None:
        if self._contexts.get(key[:8] + record.prompt_check.to_bytes(4, "big")) != record.prompt_length:
            raise StoreDamaged("the tokens of its prompt are damaged or missing")
        step, journal = records.step_of(key), records.journal_of(key)
        if record.state == "dropped" or step >= EVAL or not is_live(step, self._live_from):
            return
        node = self._logprobs.get(journal)
        if node is None or node.size != 4 + 4 * record.length:
            raise StoreDamaged("its log-probs are damaged or missing")

    def _hand_on(self, key: bytes, record: Record) -> None:
        journal, line = records.journal_of(key), record.journal()
        written = self._lines.pop(journal, None)
        if not is_live(records.step_of(key), self._live_from):
            return
        if written != line:
            why = "its line is missing" if written is None else "its line is not what its record says"
            self._book.find("journal", called("samples", key), why)
        self._book.sound("journal", journal, line)
        if (node := self._logprobs.pop(journal, None)) is not None:
            self._book.sound("logprobs", journal, self._book.pages.value(node))
        self._dropped.discard(key)

    def _left_lines(self) -> None:
        """What was dropped and never came has no record, but a line; nothing else has one."""
        line = records.pack_journal("dropped")
        for key in sorted(self._dropped):
            journal = records.journal_of(key)
            if is_live(records.step_of(key), self._live_from):
                if self._lines.pop(journal, None) != line and not self._book.damaged("samples"):
                    self._book.find("journal", called("drops", key), "its line does not say that it was dropped")
                self._book.sound("journal", journal, line)
        if not self._book.damaged("samples"):
            for table, left in (("journal", self._lines), ("logprobs", self._logprobs)):
                for key in left:
                    self._book.find(table, called(table, key), "there is no such sample")

    def _partials(self) -> None:
        ends: dict[bytes, int] = {}  # journal key -> tokens so far
        for key, value in self._book.entries("partials"):
            name, low = called("partials", key), key[:-4]
            try:
                tokens = partials.unpack(value, f"the beginning of {name}")
            except WRONG as error:
                self._book.find("partials", name, str(error))
                continue
            if partials.position(key) == ends.get(low, 0):
                ends[low] = ends.get(low, 0) + len(tokens)
                self._book.sound("partials", key, value)
            elif not self._book.damaged("partials"):
                self._book.find("partials", name, f"its beginning has a gap at {ends.get(low, 0)}")


def _prompt(key: bytes, value: bytes) -> None:
    msgspec.json.decode(frames.unpack_bytes(value, called("prompts", key)), type=dict[str, Any])
