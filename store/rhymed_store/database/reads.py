"""Queries: each is answered from one snapshot, by range scans and reads by key.

Raises `UnknownSample` naming a sample that the store does not have, `StoreDamaged` naming one that it can no longer
read. A query for lengths reads headers only. Knows the tables, not LMDB.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from rhymed.core import messages
from rhymed.core.errors import MalformedMessage, StoreDamaged, UnknownSample
from rhymed.core.steps import is_training
from rhymed_store.codec import frames, records, scoreparts, training
from rhymed_store.codec.records import Record, Tokens
from rhymed_store.codec.scoreparts import ScoreParts
from rhymed_store.database import partials, sessions
from rhymed_store.database.tables import Tables


class SampleRecord(NamedTuple):
    sample: messages.SampleId
    record: Record


class Reads:
    def __init__(self, database: Tables) -> None:
        self._database, self._tables = database, database.tables

    def samples(self, message: messages.GetSamples) -> tuple[messages.Samples, list[Any]]:
        with self._database.read() as txn:
            rows = [self._find(txn, sample) for sample in message.samples]
            arrays: list[Any] = [self._tokens(txn, rows)]
            parts, floored = list[ScoreParts](), list[bool]()
            if message.logprobs:
                logprobs, floored = self._logprobs(txn, rows)
                found = self._parts(txn, [records.sample_key(sample) for sample in message.samples])
                parts = [ScoreParts() if one is None else one for one in found]
                arrays.append(logprobs)
            if message.prompt_tokens:
                arrays.append(self._contexts(txn, rows))
            infos = sessions.attached(txn, self._tables, _infos(rows), said=not message.logprobs)
        return _samples(infos, parts, floored), arrays

    def _parts(self, txn: Any, keys: Sequence[bytes]) -> list[ScoreParts | None]:
        """None: the sample has none."""
        table = self._tables["parts"]
        if not txn.stat(table)["entries"]:
            return [None] * len(keys)
        values = [txn.get(key, db=table) for key in keys]
        return [
            None if value is None else scoreparts.unpack(key, value) for key, value in zip(keys, values, strict=True)
        ]

    def partials(self, message: messages.GetPartials) -> tuple[messages.Partials, list[Any]]:
        tokens_by_id = {}
        with self._database.read() as txn, txn.cursor(self._tables["partials"]) as cursor:
            for sample in message.samples:
                tokens = partials.get(cursor, sample)
                if tokens is not None:
                    tokens_by_id[sample] = tokens
        lengths = [len(tokens) for tokens in tokens_by_id.values()]
        return messages.Partials(samples=list(tokens_by_id), lengths=lengths), [
            b"".join(map(bytes, tokens_by_id.values()))
        ]

    def history(self, message: messages.GetHistory) -> tuple[messages.Samples, list[Any]]:
        if message.limit < 1:
            raise MalformedMessage(f"GetHistory: limit {message.limit}, at least 1 expected")
        with self._database.read() as txn:
            rows = self._earlier(txn, message.prompt, message.before_step, message.limit)
            arrays = [self._tokens(txn, rows)]
            infos = sessions.attached(txn, self._tables, _infos(rows))
        return _samples(infos), arrays

    def _earlier(self, txn: Any, prompt: str, before_step: int, limit: int) -> list[SampleRecord]:
        """Newest step first, and within a step by index."""
        low = records.prompt_key(prompt)
        taken: list[tuple[int, int, SampleRecord]] = []
        with txn.cursor(self._tables["samples"]) as cursor:
            inside = cursor.set_range(low + records.step_prefix(before_step))
            inside = cursor.prev() if inside else cursor.last()
            while inside and (key := bytes(cursor.key())) >= low:
                step = records.step_of(key)
                if len(taken) >= limit and step != -taken[-1][0]:
                    break
                sample = records.sample_at(key, prompt)
                taken.append((-step, sample.index, SampleRecord(sample, records.unpack_record(key, cursor.value()))))
                inside = cursor.prev()
        return [row for _, _, row in sorted(taken, key=lambda row: row[:2])[:limit]]

    def lengths(self, message: messages.GetLengths) -> messages.Lengths:
        with self._database.read() as txn, txn.cursor(self._tables["samples"]) as cursor:
            rows = [self._lengths(txn, cursor, prompt, message.before_step) for prompt in message.prompts]
        return messages.Lengths(rows=rows)

    def _lengths(self, txn: Any, cursor: Any, prompt: str, before_step: int) -> messages.LengthRow:
        low = records.prompt_key(prompt)
        high, lengths = low + records.step_prefix(before_step), []
        has_turns = sessions.has_turns(txn, self._tables)
        if cursor.set_range(low):
            for key, value in cursor:
                if bytes(key) >= high:
                    break
                kept = sessions.finished(txn, self._tables, bytes(key)) if has_turns else None
                length = sum(kept.turns[::2]) if kept else records.unpack_length(value)
                lengths.append((records.step_of(key), length))
        return messages.LengthRow(prompt=prompt, lengths=lengths)

    def journal(self, message: messages.GetJournal) -> messages.Journal:
        entries, low = {}, records.step_prefix(message.from_step)
        with self._database.read() as txn:
            forgotten = self._database.number(txn, "forgotten")
            drawn = self._database.drawn(txn, forgotten - 1 - message.recent)
            with txn.cursor(self._tables["partials"]) as cursor:
                for sample in partials.begun(cursor, low):
                    entries[sample] = messages.JournalEntry(id=sample, state="begun")
            entries |= {entry.id: entry for entry in sessions.in_progress(txn, self._tables, low)}
            with txn.cursor(self._tables["journal"]) as cursor:
                for key, value in cursor if cursor.set_range(low) else ():
                    entry = records.unpack_journal(key, value)
                    if entry.state == "dropped":
                        reason = txn.get(records.sample_key(entry.id), db=self._tables["drops"])
                        entry = records.unpack_journal(key, value, bytes(reason or b"").decode())
                    entries[entry.id] = entry
        return messages.Journal(entries=list(entries.values()), drawn=drawn, forgotten=forgotten)

    def prompts(self, message: messages.GetPrompts) -> messages.Prompts:
        rows = []
        with self._database.read() as txn:
            for prompt in message.prompts:
                value = txn.get(records.prompt_key(prompt), db=self._tables["prompts"])
                if value is None:
                    raise UnknownSample(f"prompt {prompt} was never stored")
                row = frames.unpack_bytes(value, f"prompt {prompt}").decode()
                rows.append(messages.PromptRow(prompt=prompt, row=row))
        return messages.Prompts(rows=rows)

    def _find(self, txn: Any, sample: messages.SampleId) -> SampleRecord:
        key = records.sample_key(sample)
        value = txn.get(key, db=self._tables["samples"])
        if value is None:
            raise UnknownSample(f"sample {sample} was never stored")
        return SampleRecord(sample, records.unpack_record(key, value))

    def _tokens(self, txn: Any, rows: Sequence[SampleRecord]) -> Tokens:
        out, starts = _space([record.length for _, record in rows])
        with txn.cursor(self._tables["tokens"]) as cursor:
            for (sample, record), start in zip(rows, starts, strict=True):
                what = f"sample {sample}"
                frame = self._database.stream.read(cursor, record.position, record.size, what)
                records.unpack_tokens(frame, record.width, out[start : start + record.length], what)
        return out

    def _logprobs(self, txn: Any, rows: Sequence[SampleRecord]) -> tuple[bytes, list[bool]]:
        """With floors where there are any, and which have them; an empty list if none has."""
        entries = [
            training.unpack(self._entry(txn, sample), record.length, f"sample {sample}") for sample, record in rows
        ]
        floored = [bool(entry.floors) for entry in entries]
        parts = [part for entry in entries for part in (entry.logprobs, entry.floors)]
        return b"".join(parts), floored if any(floored) else []

    def _entry(self, txn: Any, sample: messages.SampleId) -> Any:
        """What the store has of the sample until its step is in a checkpoint: log-probs."""
        value = txn.get(records.journal_key(sample), db=self._tables["logprobs"])
        if value is None:
            if not is_training(sample.step):
                kind = "imported history" if sample.step < 0 else "an evaluation"
                raise UnknownSample(f"sample {sample} is {kind}: there are no log-probs of it")
            forgotten = self._database.number(txn, "forgotten", sample.step)
            if sample.step < forgotten:
                raise UnknownSample(f"log-probs of sample {sample} were forgotten: a checkpoint holds its step")
            raise StoreDamaged(f"sample {sample}: its log-probs are missing; {frames.RESCUE}")
        return value

    def _contexts(self, txn: Any, rows: Sequence[SampleRecord]) -> Tokens:
        out, starts = _space([record.prompt_length for _, record in rows])
        unpacked: dict[bytes, Tokens] = {}
        for (sample, record), start in zip(rows, starts, strict=True):
            key = records.prompt_key(sample.prompt) + record.prompt_check.to_bytes(4, "big")
            part = out[start : start + record.prompt_length]
            if key in unpacked:
                part[:] = unpacked[key]
                continue
            value = txn.get(key, db=self._tables["contexts"])
            if value is None:
                raise StoreDamaged(f"sample {sample}: its prompt tokens are missing; {frames.RESCUE}")
            records.unpack_tokens(value[1:], value[0], part, f"prompt tokens of sample {sample}")
            unpacked[key] = part
        return out


def _space(lengths: Sequence[int]) -> tuple[Tokens, list[int]]:
    """An array for parts of these lengths, and where each begins."""
    ends = list(accumulate(lengths, initial=0))
    return np.empty(ends.pop(), np.uint32), ends


def _infos(rows: Sequence[SampleRecord]) -> list[messages.SampleInfo]:
    return [record.info(sample) for sample, record in rows]


def _samples(
    infos: list[messages.SampleInfo],
    parts: Sequence[ScoreParts] = (),
    floored: Sequence[bool] = (),
) -> messages.Samples:
    numbers, rewards = [found.numbers for found in parts], [list(found.token_rewards) for found in parts]
    return messages.Samples(
        samples=infos,
        parts=numbers if any(numbers) else [],
        token_rewards=rewards if any(rewards) else [],
        floored=list(floored),
    )
