"""Samples in turns while they are in progress, and what of that a complete sample keeps.

Invariants: answers and turns of a sample alternate without a gap, beginning with answer 0; each keeps its first
record; once the sample is stored, its entries are gone and nothing adds new ones. What comes after a checkpoint that
covers the step is ignored. An entry that cannot be read ends what is known of its sample: the rest is made again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from rhymed.core import messages
from rhymed.core.errors import MalformedMessage, StoreDamaged, UnknownSample
from rhymed_store.codec import masks, records, turns
from rhymed_store.codec.turns import Entry, Finished
from rhymed_store.database.prepare import HEADER_BYTES, cut
from rhymed_store.database.tables import Tables
from rhymed_store.database.transactions import Batch, Database

ENTRIES, FINISHED = "turns", "sessions"  # tables

Live = Callable[[Any, int], bool]
"""(transaction, step) -> whether no checkpoint covers the step."""


class SessionWrites:
    def __init__(self, database: Database, live: Live) -> None:
        self._database, self._tables, self._live = database, database.tables, live

    def put_turns(self, batch: Batch, message: messages.PutTurns, frames: Sequence[bytes]) -> list[messages.SampleId]:
        """Returns the samples whose turn is new. Raises `MalformedMessage` and `UnknownSample`."""
        entries = _entries(message, frames)
        self._database.claim_space(batch, sum(map(len, frames)) + HEADER_BYTES * len(entries))
        fresh: list[tuple[messages.SampleId, bytes, Entry]] = []
        for sample, number, entry in zip(message.samples, message.numbers, entries, strict=True):
            journal = records.journal_key(sample)
            key = turns.turn_key(journal, number)
            if not self._takes(batch.txn, sample) or self._read(batch.txn, key) is not None:
                continue
            before = self._read(batch.txn, turns.answer_key(journal, number))
            if before is None or before.answer is None or before.answer.done:
                raise UnknownSample(f"turn {number} of sample {sample} cannot be: the store has no answer before it")
            fresh.append((sample, key, entry))
        for _, key, entry in fresh:
            self._put(batch.txn, key, entry)
        return [sample for sample, _, _ in fresh]

    def put_answer(self, batch: Batch, message: messages.PutAnswer, tokens: bytes) -> bool:
        """Whether another answer is there. Raises `MalformedMessage` and `UnknownSample`."""
        if len(tokens) != 4 * message.answer.length:
            announced = 4 * message.answer.length
            raise MalformedMessage(f"PutAnswer of {message.sample}: {len(tokens)} bytes, {announced} announced")
        sample, number = message.sample, message.number
        if message.answer.reward is not None:
            records.check_reward(message.answer.reward, f"an answer to sample {sample}")
        _check_answer(sample, number, message.answer)
        journal = records.journal_key(sample)
        self._database.claim_space(batch, len(tokens) + HEADER_BYTES)
        key = turns.answer_key(journal, number)
        entry = Entry(answer=message.answer, tokens=bytes(tokens))
        if not self._takes(batch.txn, sample):
            return True
        if (found := self._read(batch.txn, key)) is not None:
            return found != entry
        if number and self._read(batch.txn, turns.turn_key(journal, number - 1)) is None:
            raise UnknownSample(f"answer {number} of sample {sample} cannot be: the store lacks the turn before it")
        self._check_branch(batch.txn, journal, message)
        self._put(batch.txn, key, entry)
        return False

    def _check_branch(self, txn: Any, journal: bytes, message: messages.PutAnswer) -> None:
        """What it continues is there, and as long as it says. Raises `MalformedMessage`."""
        answer, number = message.answer, message.number
        after = number - 1 if answer.after is None else answer.after
        if answer.after is None and answer.kept is None:
            return
        if not 0 <= after < number or (answer.kept or 0) > (most := self._end(txn, journal, after)):
            known = f", which ends {most} tokens" if 0 <= after < number else ""
            raise MalformedMessage(
                f"answer {number} of sample {message.sample} keeps {answer.kept} tokens of turn {after}{known}"
            )

    def _end(self, txn: Any, journal: bytes, number: int) -> int:
        """How many tokens there are up to the end of this turn."""
        total = 0
        while number >= 0:
            before = self._read(txn, turns.answer_key(journal, number))
            turn = self._read(txn, turns.turn_key(journal, number))
            if before is None or before.answer is None or turn is None or turn.turn is None:
                return 0  # it cannot be read: nothing can be kept of it
            total += before.answer.length + turn.turn.length
            if before.answer.kept is not None:
                return total + before.answer.kept
            number = number - 1 if before.answer.after is None else before.answer.after
        return total

    def put_calls(self, batch: Batch, message: messages.PutCalls) -> bool:
        """Whether another attempt has begun. Raises `MalformedMessage` and `UnknownSample`."""
        _check_number(message.sample, message.number)
        journal = records.journal_key(message.sample)
        key = turns.begun_key(journal, message.number)
        if not self._takes(batch.txn, message.sample):
            return True
        if self._read(batch.txn, turns.turn_key(journal, message.number)) is None:
            raise UnknownSample(f"turn {message.number} of sample {message.sample} has no calls: the store lacks it")
        if (found := self._read(batch.txn, key)) is not None:
            return found.attempt != message.attempt
        self._database.claim_space(batch, HEADER_BYTES)
        batch.txn.put(key, turns.pack(key, Entry(attempt=message.attempt)), db=self._tables[ENTRIES])
        return False

    def check_whole(self, txn: Any, infos: Sequence[messages.SampleInfo]) -> None:
        """Raises `MalformedMessage` for a sample that was begun in turns and is to be stored as one response."""
        if not txn.stat(self._tables[ENTRIES])["entries"]:
            return
        for info in infos:
            if not info.turns and next(_sound(txn, self._tables, records.journal_key(info.id)), None) is not None:
                raise MalformedMessage(f"sample {info.id} is written in turns: it is stored with them, when they end")

    def finish(self, txn: Any, info: messages.SampleInfo) -> None:
        """The sample is stored: what is kept of its turns, and the rest is deleted."""
        key, low = records.sample_key(info.id), records.journal_key(info.id)
        answers = [entry.answer for entry in _sound(txn, self._tables, low) if entry.answer is not None]
        calls = [answer.calls for answer in answers[1:]]
        said = [answer.said for answer in answers[1:] if answer.said]
        state = answers[-1].state if answers else ""
        rewards = tuple(info.turn_rewards)
        kept = Finished(info.turns, info.earned, calls, tuple(info.forks), info.last, tuple(said), state, rewards)
        txn.put(key, turns.pack(key, kept), db=self._tables[FINISHED])
        with txn.cursor(self._tables[ENTRIES]) as cursor:
            while cursor.set_range(low) and bytes(cursor.key())[:-4] == low:
                cursor.delete()

    def _takes(self, txn: Any, sample: messages.SampleId) -> bool:
        stored = txn.get(records.sample_key(sample), db=self._tables["samples"]) is not None
        return self._live(txn, sample.step) and not stored

    def _put(self, txn: Any, key: bytes, entry: Entry) -> None:
        """An answer or a turn. In place of one that cannot be read, what came after that is deleted: it belongs to
        other tokens."""
        if txn.get(key, db=self._tables[ENTRIES]) is not None:
            journal, calls = key[:-4], (turns.number_of(key) + 1) // 2
            with txn.cursor(self._tables[ENTRIES]) as cursor:
                for low, high in ((key, turns.BEGUN), (turns.begun_key(journal, calls), 2 * turns.BEGUN)):
                    while cursor.set_range(low) and _is_of(cursor.key(), journal, high):
                        cursor.delete()
        txn.put(key, turns.pack(key, entry), db=self._tables[ENTRIES])

    def _read(self, txn: Any, key: bytes) -> Entry | None:
        """None: there is none that can be read."""
        value = txn.get(key, db=self._tables[ENTRIES])
        with contextlib.suppress(StoreDamaged):
            return None if value is None else turns.unpack(key, value)
        return None


def _is_of(key: Any, journal: bytes, below: int) -> bool:
    """Whether the entry is the sample's, and its number is below this one."""
    return bytes(key[:-4]) == journal and turns.number_of(key) < below


def _entries(message: messages.PutTurns, frames: Sequence[bytes]) -> list[Entry]:
    count, lengths = len(message.samples), [turn.length for turn in message.turns]
    if not count == len(message.numbers) == len(message.turns) or len(message.drafted) not in (0, count):
        raise MalformedMessage(
            f"PutTurns: {len(message.turns)} turns, {len(message.numbers)} numbers of {count} samples"
        )
    if len(frames) != (expected := 2 + bool(message.drafted)):
        raise MalformedMessage(f"PutTurns carries {expected} arrays, not {len(frames)}")
    if len(message.floored) not in (0, count):
        raise MalformedMessage(f"PutTurns: {len(message.floored)} turns with or without floors, of {count}")
    floored = message.floored or [False] * count
    with_floors = [length * (1 + has) for length, has in zip(lengths, floored, strict=True)]
    for frame, sizes in zip(frames, (lengths, with_floors), strict=False):
        if len(frame) != 4 * sum(sizes):
            raise MalformedMessage(f"PutTurns: {len(frame)} bytes, {4 * sum(sizes)} announced")
    for sample, number, turn in zip(message.samples, message.numbers, message.turns, strict=True):
        _check_number(sample, number)
        if not turn.length or turn.finish_reason == "abort":
            raise MalformedMessage(f"PutTurns: turn {number} of sample {sample} is not complete")
        if sum(count for _, count in turn.versions) != turn.length or any(count < 1 for _, count in turn.versions):
            raise MalformedMessage(f"PutTurns: versions {turn.versions} do not sum to {turn.length} tokens")
    drafted: Sequence[bytes | None] = [None] * count
    if message.drafted:
        drafted = masks.cut("PutTurns", frames[2], lengths, message.drafted)
    parts = zip(message.turns, cut(frames[0], lengths), cut(frames[1], with_floors), drafted, strict=True)
    return [Entry(None, turn, bytes(tokens), bytes(logprobs), mask) for turn, tokens, logprobs, mask in parts]


def _check_number(sample: messages.SampleId, number: int) -> None:
    if number >= turns.MOST:
        raise MalformedMessage(f"sample {sample}: there is no turn {number}")


def _check_answer(sample: messages.SampleId, number: int, answer: messages.Answer) -> None:
    _check_number(sample, number)
    if not number and (answer.done or not answer.length):
        raise MalformedMessage(f"PutAnswer of {sample}: answer 0 is a prompt, which has tokens and ends nothing")


def _sound(txn: Any, tables: dict[str, Any], low: bytes, first: int = 0) -> Iterator[Entry]:
    """The sample's answers and turns, alternately, from answer `first` up to the first that is missing or cannot be
    read."""
    with txn.cursor(tables[ENTRIES]) as cursor:
        expected, there = 2 * first, cursor.set_range(turns.answer_key(low, first))
        while there and bytes(cursor.key())[:-4] == low and turns.number_of(cursor.key()) == expected:
            try:
                yield turns.unpack(bytes(cursor.key()), cursor.value())
            except StoreDamaged:
                return
            expected, there = expected + 1, cursor.next()


def read_sessions(database: Tables, message: messages.GetSessions) -> tuple[messages.Sessions, list[bytes]]:
    found, arrays, tables = [], [b""] * (3 if message.logprobs else 1), database.tables
    with database.read() as txn:
        for sample in message.samples:
            low = records.journal_key(sample)
            stored = txn.get(records.sample_key(sample), db=tables["samples"]) is not None
            entries = [] if stored else list(_sound(txn, tables, low, message.first))
            begun = _begun(txn, tables, low, 2 * message.first + len(entries))
            session = _session(sample, entries, begun=begun, stored=stored)
            found.append(session if message.logprobs else _without_results(session))
            arrays[0] += b"".join([entry.tokens for entry in entries])
            if message.logprobs:
                arrays[1] += b"".join([entry.logprobs for entry in entries])
                arrays[2] += b"".join([entry.drafted or b"" for entry in entries])
    return messages.Sessions(sessions=found), arrays


def _session(sample: messages.SampleId, entries: Sequence[Entry], *, begun: bool, stored: bool) -> messages.Session:
    made = [entry.turn for entry in entries if entry.turn is not None]
    floored = [len(entry.logprobs) > 4 * entry.turn.length for entry in entries if entry.turn is not None]
    return messages.Session(
        id=sample,
        answers=[entry.answer for entry in entries if entry.answer is not None],
        turns=made,
        begun=begun,
        stored=stored,
        drafted=[entry.drafted is not None for entry in entries if entry.turn is not None],
        floored=floored if any(floored) else [],
    )


def _without_results(session: messages.Session) -> messages.Session:
    """The worker that writes the next turn needs neither rewards nor calls, nor messages."""
    answers = [
        msgspec.structs.replace(answer, reward=None, calls=[], said="", state="") for answer in session.answers
    ]
    return msgspec.structs.replace(session, answers=answers)


def _begun(txn: Any, tables: dict[str, Any], low: bytes, entries: int) -> bool:
    if not entries or entries % 2:  # an answer is the last entry
        return False
    return txn.get(turns.begun_key(low, entries // 2 - 1), db=tables[ENTRIES]) is not None


def in_progress(txn: Any, tables: dict[str, Any], low: bytes) -> Iterator[messages.JournalEntry]:
    """Samples with turns, from this journal key on."""
    if not txn.stat(tables[ENTRIES])["entries"]:
        return
    with txn.cursor(tables[ENTRIES]) as cursor:
        there = cursor.set_range(low)
        while there:
            own = bytes(cursor.key())[:-4]
            entries = list(_sound(txn, tables, own))
            last = entries[-1].answer if entries else None
            waits = last is None or last.done
            yield messages.JournalEntry(id=records.sample_of(own), state="turned" if waits else "begun")
            there = cursor.set_range(own + b"\xff" * 5)


def has_turns(txn: Any, tables: dict[str, Any]) -> bool:
    """Whether any complete sample had an environment."""
    return bool(txn.stat(tables[FINISHED])["entries"])


def finished(txn: Any, tables: dict[str, Any], key: bytes) -> Finished | None:
    """Of the complete sample with this key; None: it had no environment. Raises `StoreDamaged`."""
    value = txn.get(key, db=tables[FINISHED])
    return None if value is None else turns.unpack_finished(key, value)


def attached(
    txn: Any, tables: dict[str, Any], infos: Sequence[messages.SampleInfo], *, said: bool = False
) -> list[messages.SampleInfo]:
    """Infos with their turns; `said`: also with messages. Costs nothing in a store without turns."""
    if not has_turns(txn, tables):
        return list(infos)
    found = [finished(txn, tables, records.sample_key(info.id)) for info in infos]
    return [info if kept is None else kept.attach(info, said=said) for info, kept in zip(infos, found, strict=True)]
