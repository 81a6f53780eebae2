"""Write operations: each is a part of a transaction, and checks all of its input before it writes.

A sample keeps its first record; a reward may be replaced until the sample is trained; the last mark wins, and a late
score does not change the state of a trained or dropped sample. Only samples that may still be trained have log-probs:
neither imported history (step < 0, which has no journal either) nor evaluations (from EVAL). Knows the tables, not
LMDB.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from rhymed.core import messages
from rhymed.core.errors import RunMismatch, UnknownSample
from rhymed.core.steps import evaluated_version, is_evaluation
from rhymed_store.codec import frames, records, scoreparts
from rhymed_store.database import partials
from rhymed_store.database.prepare import HEADER_BYTES, NewRow, check_partials, check_row, cut
from rhymed_store.database.sessions import SessionWrites
from rhymed_store.database.transactions import Batch, Database

SMALL = 4096  # bytes of a sample's parts of a reward, which need no room of their own


def _differing(first: str, second: str) -> tuple[str, str]:
    """Of two fingerprints that are JSON objects the keys that differ; other ones whole."""
    try:
        trees = [msgspec.json.decode(text, type=dict[str, Any]) for text in (first, second)]
    except msgspec.DecodeError:
        return f"fingerprint {first}", f"fingerprint {second}"
    keys = sorted(key for key in trees[0] | trees[1] if trees[0].get(key) != trees[1].get(key))
    before, now = (", ".join(f"{key} = {tree.get(key)!r}" for key in keys) or "the same" for tree in trees)
    return before, now


class Writes:
    """The operations on one database. `level` is zstd's, for prompts and their tokens."""

    def __init__(self, database: Database, level: int) -> None:
        self._database, self._tables, self._level = database, database.tables, level
        self.sessions = SessionWrites(database, lambda txn, step: is_live(step, self._live_from(txn)))

    def open_run(self, batch: Batch, message: messages.OpenRun) -> None:
        meta = self._tables["meta"]
        owner = batch.txn.get(b"run", db=meta)
        claim = msgspec.json.encode([message.run, message.fingerprint])
        if owner is None:
            batch.txn.put(b"run", claim, db=meta)
        elif bytes(owner) != claim:
            run, fingerprint = msgspec.json.decode(owner, type=tuple[str, str])
            if fingerprint == message.fingerprint and message.id and self._id(batch.txn) == message.id:
                batch.txn.put(b"run", claim, db=meta)  # its folder was renamed, or is a copy
                return
            before, now = _differing(fingerprint, message.fingerprint)
            raise RunMismatch(
                f"{self._database.folder} belongs to run {run!r} ({before}), not to {message.run!r} ({now}); choose"
                " another run.name, or restore model, data and seed"
            )
        if message.id:
            self._check_id(batch.txn, message.id)

    def _check_id(self, txn: Any, id: str) -> None:
        """A store without an id, made by an import, takes the run's."""
        meta = self._tables["meta"]
        found = self._id(txn)
        if found and found != id:
            raise RunMismatch(
                f"{self._database.folder} is the store of another run (id {found}), though of the same name and"
                f" settings: this run is {id}; put its own store back"
            )
        txn.put(b"id", id.encode(), db=meta)

    def _id(self, txn: Any) -> str:
        return bytes(txn.get(b"id", db=self._tables["meta"]) or b"").decode()

    def put_prompts(self, batch: Batch, message: messages.PutPrompts) -> None:
        rows = [(records.prompt_key(row.prompt), check_row(row.prompt, row.row)) for row in message.rows]
        self._database.claim_space(batch, sum(len(data) + HEADER_BYTES for _, data in rows))
        for key, data in rows:
            if batch.txn.get(key, db=self._tables["prompts"]) is None:
                batch.txn.put(key, frames.pack_bytes(data, self._level), db=self._tables["prompts"])

    def put_samples(self, batch: Batch, rows: Sequence[NewRow]) -> list[messages.SampleInfo]:
        """Returns the stored record of every sample whose earlier record differs from the one passed in."""
        txn, table = batch.txn, self._tables["samples"]
        first = {row.key: row for row in reversed(rows)}
        fresh = [row for key, row in sorted(first.items()) if txn.get(key, db=table) is None]
        self.sessions.check_whole(txn, [row.info for row in fresh])
        if fresh:
            self._put_fresh(batch, fresh)
        if len(fresh) == len(rows):
            return []
        stored = [self._record(txn, row.info.id).info(row.info.id) for row in rows]
        return [info for info, row in zip(stored, rows, strict=True) if _content(info) != _content(row.info)]

    def _put_fresh(self, batch: Batch, fresh: Sequence[NewRow]) -> None:
        txn = batch.txn
        blob = b"".join([part for row in fresh for part in (row.frame, row.drafted)])
        self._database.claim_space(batch, len(blob) + sum(len(row.logprobs) + HEADER_BYTES for row in fresh))
        self._put_contexts(txn, fresh)
        new = self._headers(txn, fresh, self._database.stream.append(txn, blob))
        self._put_all(
            txn, "samples", [(row.key, record.pack(row.key)) for row, record in zip(fresh, new, strict=True)]
        )
        live_from = self._live_from(txn)
        live = [(records.journal_key(row.info.id), row, record) for row, record in zip(fresh, new, strict=True)]
        live = sorted(entry for entry in live if is_live(entry[1].info.id.step, live_from))
        self._put_all(txn, "logprobs", [(key, row.logprobs) for key, row, _ in live if row.logprobs])
        self._put_all(txn, "journal", [(key, record.journal()) for key, _, record in live])
        if txn.stat(self._tables["partials"])["entries"]:
            with txn.cursor(self._tables["partials"]) as cursor:
                for row in fresh:
                    partials.remove(cursor, records.journal_key(row.info.id))
        for row in fresh:
            if row.info.turns:
                self.sessions.finish(txn, row.info)
        batch.tokens += sum(row.info.length for row in fresh)

    def _put_contexts(self, txn: Any, rows: Sequence[NewRow]) -> None:
        for key, context in {row.context_key: row.context for row in rows}.items():
            if txn.get(key, db=self._tables["contexts"]) is None:
                tokens = np.frombuffer(context, "<u4")
                (frame,), width = records.pack_tokens(tokens, [len(tokens)], self._level)
                txn.put(key, bytes([width]) + frame, db=self._tables["contexts"])

    def _headers(self, txn: Any, rows: Sequence[NewRow], position: int) -> list[records.Record]:
        drops = self._tables["drops"] if txn.stat(self._tables["drops"])["entries"] else None
        headers = []
        for row in rows:
            check = int.from_bytes(row.context_key[-4:], "big")
            record = records.new_record(row.info, check, position, len(row.frame), row.width, len(row.drafted))
            if drops and txn.get(row.key, db=drops) is not None:
                record = record.marked("dropped")  # dropped before it arrived
            headers.append(record)
            position += record.size + record.drafted
        return headers

    def _put_all(self, txn: Any, table: str, rows: list[tuple[bytes, bytes]]) -> None:
        with txn.cursor(self._tables[table]) as cursor:
            cursor.putmulti(rows)

    def put_partials(self, batch: Batch, message: messages.PutPartials, tokens: bytes) -> list[messages.SampleId]:
        """Returns the samples whose part would leave a hole: it is not kept. Parts of samples that are stored, or not
        live, are ignored.

        Raises `MalformedMessage`.
        """
        check_partials(message, len(tokens))
        self._database.claim_space(batch, len(tokens) + partials.HEADER_BYTES * len(message.samples))
        live_from = self._live_from(batch.txn)
        parts = zip(message.samples, message.starts, cut(tokens, message.lengths), strict=True)
        missing = []
        with batch.txn.cursor(self._tables["partials"]) as cursor:
            for sample, start, part in parts:
                stored = batch.txn.get(records.sample_key(sample), db=self._tables["samples"]) is not None
                if is_live(sample.step, live_from) and not stored and not partials.put(cursor, sample, start, part):
                    missing.append(sample)
        return missing

    def remove_partials(self, batch: Batch, sample: messages.SampleId) -> None:
        with batch.txn.cursor(self._tables["partials"]) as cursor:
            partials.remove(cursor, records.journal_key(sample))

    def put_scores(self, batch: Batch, message: messages.PutScores) -> None:
        updates = []
        for score in message.scores:
            reward = records.check_reward(score.reward, score.id)
            record = self._record(batch.txn, score.id)
            parts = scoreparts.pack(records.sample_key(score.id), score, record.length)
            updates.append((score.id, record, reward, parts))
        if size := sum(len(parts) for *_, parts in updates if len(parts) > SMALL):
            self._database.claim_space(batch, size)
        for sample, record, reward, parts in updates:
            if record.state != "trained":
                self._put_parts(batch.txn, sample, parts)
                self._update(batch.txn, sample, record.scored(reward))

    def _put_parts(self, txn: Any, sample: messages.SampleId, parts: bytes) -> None:
        """In place of earlier ones. A full store takes them as it takes the score if they are `SMALL`."""
        key, table = records.sample_key(sample), self._tables["parts"]
        if parts:
            txn.put(key, parts, db=table)
        else:
            txn.delete(key, db=table)

    def mark(self, batch: Batch, message: messages.MarkSamples) -> None:
        txn, state = batch.txn, message.state
        if state == "dropped":
            self._drop(txn, message)
        stored = [(sample, self._record(txn, sample, missing_ok=state == "dropped")) for sample in message.samples]
        for sample, record in stored:
            if record is not None:
                self._update(txn, sample, record.marked(state))
        if message.drawn is not None:
            txn.put(records.drawn_key(message.drawn.step), records.pack_drawn(message.drawn), db=self._tables["meta"])

    def _drop(self, txn: Any, message: messages.MarkSamples) -> None:
        """Keep the reason for good; a sample that was never generated has no record, only a line in the journal."""
        keys = [(records.sample_key(sample), records.journal_key(sample)) for sample in message.samples]
        live_from = self._live_from(txn)
        line = records.pack_journal("dropped")
        for sample, (key, journal) in zip(message.samples, keys, strict=True):
            txn.put(key, message.reason.encode(), db=self._tables["drops"])
            if is_live(sample.step, live_from):
                txn.put(journal, line, db=self._tables["journal"])

    def forget_logprobs(self, batch: Batch, message: messages.ForgetLogprobs) -> None:
        """Scored samples of these steps are in the checkpoint: trained, even if a broker died before it said so."""
        below = max(min(message.below_step, self._next_step(batch.txn)), self._live_from(batch.txn))
        self._settle(batch.txn, below)
        for table, first in (
            ("logprobs", 0),
            ("journal", 0),
            ("journal", messages.EVAL),
            ("partials", 0),
            ("partials", messages.EVAL),
            ("turns", 0),
            ("turns", messages.EVAL),
        ):
            low, high = records.step_prefix(first), records.step_prefix(first + below)
            with batch.txn.cursor(self._tables[table]) as cursor:
                while cursor.set_range(low) and cursor.key() < high:
                    cursor.delete()
        self._database.put_number(batch.txn, "forgotten", below)

    def _settle(self, txn: Any, below: int) -> None:
        """Scored samples of training steps become trained. Few are left; the journal's first byte identifies them."""
        high, scored = records.step_prefix(below), []
        with txn.cursor(self._tables["journal"]) as cursor:
            if cursor.set_range(records.step_prefix(0)):
                for key, value in cursor:
                    if key >= high:
                        break
                    if records.journal_state(value) == "scored":
                        scored.append(records.unpack_journal(key, value).id)
        for sample in scored:
            record = self._record(txn, sample, missing_ok=True)
            if record is not None:
                key = records.sample_key(sample)
                txn.put(key, record.marked("trained").pack(key), db=self._tables["samples"])

    def _next_step(self, txn: Any) -> int:
        """The step after the newest training step in the journal: no checkpoint can cover more."""
        with txn.cursor(self._tables["journal"]) as cursor:
            beyond = cursor.set_range(records.step_prefix(messages.EVAL))
            there = cursor.prev() if beyond else cursor.last()
            return records.unpack_journal(cursor.key(), cursor.value()).id.step + 1 if there else 0

    def _live_from(self, txn: Any) -> int:
        """First step that no checkpoint covers: older ones have neither journal nor log-probs."""
        return self._database.number(txn, "forgotten")

    def _record(self, txn: Any, sample: messages.SampleId, *, missing_ok: bool = False) -> Any:
        key = records.sample_key(sample)
        value = txn.get(key, db=self._tables["samples"])
        if value is None and not missing_ok:
            raise UnknownSample(f"sample {sample} was never stored")
        return None if value is None else records.unpack_record(key, value)

    def _update(self, txn: Any, sample: messages.SampleId, record: records.Record) -> None:
        key = records.sample_key(sample)
        txn.put(key, record.pack(key), db=self._tables["samples"])
        if is_live(sample.step, self._live_from(txn)):
            txn.put(records.journal_key(sample), record.journal(), db=self._tables["journal"])


def is_live(step: int, live_from: int) -> bool:
    """Whether the journal covers this step, where `live_from` is the first that no checkpoint covers."""
    return step >= live_from and (not is_evaluation(step) or evaluated_version(step) >= live_from)


def _content(info: messages.SampleInfo) -> tuple[Any, ...]:
    """The part in which two records of a sample must agree; its state may differ."""
    return info.prompt_length, info.length, info.finish_reason, [tuple(run) for run in info.versions]
