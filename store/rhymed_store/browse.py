"""A whole store, prompt by prompt, for people: the queries of `Reads`, and some that no process of a run needs.

Each call reads one snapshot of one prompt, however large the store is. Knows the tables, not LMDB.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rhymed.core.messages import Call, Drawn, SampleId, SampleInfo, SampleState, TokenReward
from rhymed.core.printable import line
from rhymed.core.secret import hide
from rhymed_store.codec import frames, masks, records
from rhymed_store.codec.records import Record, Tokens
from rhymed_store.codec.turns import Finished
from rhymed_store.columns import SampleColumns, read_columns
from rhymed_store.database import sessions
from rhymed_store.database.reads import Reads, SampleRecord
from rhymed_store.database.tables import Reader

LAST = b"\xff" * 6  # step and index of a sample key

LONGEST_REASON = 4000  # characters


class Totals(NamedTuple):
    """Of the whole store, from its counters."""

    samples: int
    tokens: int  # response tokens
    prompts: int  # dataset rows
    used_bytes: int
    passing_bytes: int  # of these: log-probs and journal, which the next checkpoint frees


class Response(NamedTuple):
    """Everything the store has of one sample."""

    info: SampleInfo
    state: SampleState
    reason: str  # why dropped
    tokens: Tokens
    prompt_tokens: Tokens
    drafted: NDArray[np.bool_] | None = None  # per token: was it an accepted draft; None: unknown
    parts: dict[str, float | str] | None = (
        None  # scorer -> its reward before its weight, scorer/name -> values that it names
    )
    calls: Sequence[Sequence[Call]] = ()  # of its environment, by answer
    token_rewards: Sequence[TokenReward] = ()  # where parts of the reward were earned, as in `Score`


class Browse(Reads):
    def totals(self) -> Totals:
        with self._database.read() as txn:
            return Totals(
                samples=txn.stat(self._tables["samples"])["entries"],
                tokens=self._database.number(txn, "tokens"),
                prompts=txn.stat(self._tables["prompts"])["entries"],
                used_bytes=self._database.used_bytes(txn),
                passing_bytes=self._database.used_bytes(txn, "logprobs", "journal"),
            )

    def ids(self) -> list[str]:
        """Prompts that have samples, ascending."""
        with self._database.read() as txn, txn.cursor(self._tables["samples"]) as cursor:
            return [prompt.hex() for prompt in _prompts(cursor)]

    def prompts_of_step(self, step: int, most: int) -> list[str]:
        """The first prompts, by their ids, that have samples of this step. A look-up per prompt of the store."""
        found: list[str] = []
        with self._database.read() as txn, txn.cursor(self._tables["samples"]) as cursor:
            for prompt in _prompts(cursor):
                if len(found) == most:
                    break
                start = records.sample_key(SampleId(step=step, prompt=prompt.hex(), index=0))
                if cursor.set_range(start) and cursor.key()[:12] == start[:12]:
                    found.append(prompt.hex())
        return found

    def columns(self) -> SampleColumns:
        """The headers of all samples."""
        return read_columns(self._database)

    def row(self, prompt: str) -> str | None:
        """JSON of the dataset's row; None if it was never stored."""
        with self._database.read() as txn:
            value = txn.get(records.prompt_key(prompt), db=self._tables["prompts"])
            return None if value is None else frames.unpack_bytes(value, f"prompt {prompt}").decode()

    def headers(self, prompt: str) -> list[SampleRecord]:
        """The prompt's samples without their tokens, by step and index."""
        with self._database.read() as txn:
            return self._headers(txn, prompt)

    def responses(self, prompt: str) -> list[Response]:
        """The prompt's samples with their tokens, by step and index."""
        with self._database.read() as txn:
            found = self._headers(txn, prompt)
            tokens = _cut(self._tokens(txn, found), [row.record.length for row in found])
            contexts = _cut(self._contexts(txn, found), [row.record.prompt_length for row in found])
            reasons, drafted = [self._reason(txn, row) for row in found], self._masks(txn, found)
            parts = self._parts(txn, [records.sample_key(row.sample) for row in found])
            rest = [sessions.finished(txn, self._tables, records.sample_key(row.sample)) for row in found]
        return [
            Response(
                _info(row, kept),
                row.record.state,
                reason,
                own,
                context,
                mask,
                part.parts or None if part else None,
                kept.calls if kept else [],
                part.token_rewards if part else (),
            )
            for row, reason, own, context, mask, part, kept in zip(
                found, reasons, tokens, contexts, drafted, parts, rest, strict=True
            )
        ]

    def drafted(self, found: Sequence[SampleRecord]) -> list[NDArray[np.bool_] | None]:
        """Which tokens of these samples were accepted drafts, without reading the tokens."""
        with self._database.read() as txn:
            return self._masks(txn, found)

    def drops(self, prompt: str) -> dict[SampleId, str]:
        """The prompt's dropped samples with the reasons, including those that were never generated."""
        with self._database.read() as txn, txn.cursor(self._tables["drops"]) as cursor:
            entries = _of_prompt(cursor, prompt)
            return {records.sample_at(key, prompt): _shown(bytes(value)) for key, value in entries}

    def in_progress(self) -> list[SampleId]:
        """Samples that have answers or turns, and are not complete."""
        with self._database.read() as txn:
            return [entry.id for entry in sessions.in_progress(txn, self._tables, b"\0")]

    def begins(self) -> int:
        """The first step that the store may have: later than 0 if its run was resumed without history."""
        with self._database.read() as txn:
            return self._database.number(txn, "begins")

    def drawn_steps(self) -> list[Drawn]:
        """What trained steps drew from the plan; empty if it follows from the plan alone."""
        with self._database.read() as txn:
            return self._database.drawn(txn)

    def _headers(self, txn: Any, prompt: str) -> list[SampleRecord]:
        with txn.cursor(self._tables["samples"]) as cursor:
            return [
                SampleRecord(records.sample_at(key, prompt), records.unpack_record(key, value))
                for key, value in _of_prompt(cursor, prompt)
            ]

    def _masks(self, txn: Any, found: Sequence[SampleRecord]) -> list[NDArray[np.bool_] | None]:
        with txn.cursor(self._tables["tokens"]) as cursor:
            return [self._mask(cursor, *row) if row.record.drafted else None for row in found]

    def _mask(self, cursor: Any, sample: SampleId, record: Record) -> NDArray[np.bool_]:
        what = f"sample {sample}"
        value = self._database.stream.read(cursor, record.position + record.size, record.drafted, what)
        return masks.unpack(bytes(value), record.length, what)

    def _reason(self, txn: Any, found: SampleRecord) -> str:
        if found.record.state != "dropped":
            return ""
        return _shown(bytes(txn.get(records.sample_key(found.sample), db=self._tables["drops"]) or b""))


def _prompts(cursor: Any) -> Iterator[bytes]:
    """Prompts that have samples, ascending. Meanwhile the cursor may be moved."""
    there = cursor.first()
    while there:
        prompt = bytes(cursor.key()[:8])
        yield prompt
        there = cursor.set_range(prompt + LAST)
        if there and cursor.key()[:8] == prompt:  # a sample with the last possible key
            there = cursor.next()


def _of_prompt(cursor: Any, prompt: str) -> Iterator[tuple[Any, Any]]:
    low = records.prompt_key(prompt)
    entries = cursor.iternext() if cursor.set_range(low) else iter(())
    return itertools.takewhile(lambda entry: entry[0][:8] == low, entries)


def _info(row: SampleRecord, kept: Finished | None) -> SampleInfo:
    info = row.record.info(row.sample)
    return info if kept is None else kept.attach(info)


def _shown(reason: bytes) -> str:
    """A reason may quote an exception of the user's code, and secrets in it."""
    return line(hide(reason.decode(errors="replace")), LONGEST_REASON)


def _cut(whole: Tokens, lengths: list[int]) -> list[Tokens]:
    ends = itertools.accumulate(lengths)
    return [whole[end - length : end] for end, length in zip(ends, lengths, strict=True)]


class StoreReader(Reader):
    """A run's store, opened read-only, for people; `browse` has every query. A context manager. Raises `StoreError`
    where it cannot be read."""

    def __init__(self, store: Path) -> None:
        super().__init__(store)
        self.browse = Browse(self)
