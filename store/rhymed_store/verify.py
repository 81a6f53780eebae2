"""Whether a store is intact: every page, every value that has a checksum, and what belongs together. Changes nothing.

A child process reads, so damage cannot end this one; it holds one snapshot, so a store may be at work meanwhile.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from rhymed.core.errors import RhymedError, StoreDamaged
from rhymed.core.steps import is_evaluation
from rhymed_store.browse import Browse
from rhymed_store.codec import frames, records, scoreparts, turns
from rhymed_store.database import partials
from rhymed_store.database.child import Unreadable, answer, ask
from rhymed_store.database.probe import walk
from rhymed_store.database.reads import SampleRecord
from rhymed_store.database.tables import Reader
from rhymed_store.database.writes import is_live

WRONG = (RhymedError, ValueError, LookupError, struct.error, MemoryError, msgspec.MsgspecError)
"""What reading damaged bytes can raise."""


class Finding(NamedTuple):
    table: str
    name: str  # of what is damaged
    why: str


class Report(msgspec.Struct):
    counts: dict[str, int] = {}  # table -> sound entries
    tokens: int = 0  # response tokens of the sound samples
    findings: list[Finding] = []

    @property
    def sound(self) -> bool:
        return not self.findings


def verify(folder: Path) -> Report:
    """Read everything. Raises `StoreError` where there is no database, or one of another schema. Blocking."""
    report, unreadable = Report(), ""
    try:
        report = msgspec.convert(ask(__name__, folder), Report)
    except Unreadable as error:
        unreadable = str(error)
    try:
        walk(folder)
    except Unreadable as error:  # names the place, too
        unreadable = str(error)
    if unreadable:
        report.findings.insert(0, Finding("pages", "data.mdb", unreadable))
    return report


class _Entries(Browse):
    """Of one snapshot, each read as its readers do."""

    def __init__(self, reader: Reader, txn: Any) -> None:
        super().__init__(reader)
        self._txn, self._report = txn, Report()

    def report(self) -> Report:
        readers: dict[str, Callable[[bytes, Any], object]] = {
            "meta": self._meta,
            "prompts": lambda _, value: msgspec.json.decode(frames.unpack_bytes(value, ""), type=dict[str, Any]),
            "parts": scoreparts.unpack,
            "sessions": turns.unpack_finished,
            "turns": turns.unpack,
            "partials": lambda _, value: partials.unpack(value, ""),
            "drops": lambda _, value: bytes(value).decode(),
            "samples": self._sample,
            "journal": self._line,
        }
        for table, read in readers.items():
            sound = 0
            for key, value in self._txn.cursor(self._tables[table]):
                try:
                    read(bytes(key), value)
                    sound += 1
                except WRONG as error:
                    self._add(table, _name(table, bytes(key)), str(error))
            self._report.counts[table] = sound
        if self._report.sound and (counted := self._database.number(self._txn, "tokens")) != self._report.tokens:
            self._add("meta", "the number of tokens", f"{counted} were counted, {self._report.tokens} are there")
        return self._report

    def _add(self, table: str, name: str, why: str) -> None:
        why = why.removeprefix(name).removeprefix(": ").removesuffix(f"; {frames.RESCUE}").strip()
        self._report.findings.append(Finding(table, name, why))

    def _meta(self, key: bytes, value: Any) -> None:
        if key.startswith(records.PREFIX):
            records.unpack_drawn(key, value)
        elif key == b"run":
            msgspec.json.decode(value, type=tuple[str, str])
        elif key == b"id":
            bytes(value).decode()
        else:
            int(bytes(value))

    def _sample(self, key: bytes, value: Any) -> None:
        row = SampleRecord(records.sample_at(key, key[:8].hex()), records.unpack_record(key, value))
        self._tokens(self._txn, [row])
        self._contexts(self._txn, [row])
        self._masks(self._txn, [row])
        if is_live(row.sample.step, self._live_from()):
            if row.record.state != "dropped" and not is_evaluation(row.sample.step):
                self._logprobs(self._txn, [row])
            if self._txn.get(records.journal_of(key), db=self._tables["journal"]) != row.record.journal():
                raise StoreDamaged("its line of the journal is missing, or is not what its record says")
        self._report.tokens += row.record.length

    def _live_from(self) -> int:
        try:
            return self._database.number(self._txn, "forgotten")
        except ValueError:  # it is a finding; what is left of each step is not known
            return records.STEP_BIAS

    def _line(self, key: bytes, value: Any) -> None:
        sample = records.sample_key(records.unpack_journal(key, value).id)
        if all(self._txn.get(sample, db=self._tables[table]) is None for table in ("samples", "drops")):
            raise StoreDamaged("there is no such sample")


def _name(table: str, key: bytes) -> str:
    if table in ("samples", "parts", "sessions"):
        return f"sample {records.name_of(key)}"
    if table in ("journal", "partials", "turns") and len(key) >= records.SAMPLE_KEY_BYTES:
        return f"sample {records.sample_of(key)}"
    return f"prompt {key.hex()}" if table == "prompts" else repr(key[:40].decode(errors="replace"))


def _read(folder: Path) -> Any:
    """In the child."""
    with Reader(folder) as reader, reader.read() as txn:
        return msgspec.to_builtins(_Entries(reader, txn).report())


if __name__ == "__main__":
    sys.exit(answer(sys.argv[1], _read))
