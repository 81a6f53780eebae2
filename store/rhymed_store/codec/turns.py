"""Turns, answers and finished sessions at rest: MessagePack behind a checksum of the key and of itself. Pure.

While a sample is in progress each of its answers and turns is an entry, keyed by the sample's journal key and the
entry's number: answer n is 2n, turn n is 2n + 1, and that the calls of turn n have begun is `BEGUN` + n. A complete
sample has one entry, keyed as the sample: which of its tokens its environment wrote, the reward that it gave, and its
calls.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from rhymed.core.messages import Answer, Call, Fork, SampleInfo, Turn
from rhymed_store.codec import frames, records

BEGUN = 1 << 31
MOST = 1 << 30  # turns of a sample: so that the numbers of its entries fit four bytes


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """An answer or a turn; of a beginning only `attempt` is set. Arrays as bytes, as they came."""

    answer: Answer | None = None
    turn: Turn | None = None
    tokens: bytes = b""  # uint32
    logprobs: bytes = b""  # float32, of a turn; floors follow them if it has any
    drafted: bytes | None = None  # mask of accepted drafts as in PutSamples; None: unknown
    attempt: str = ""


class Finished(NamedTuple):
    """What a complete sample has beyond its record."""

    turns: list[int]  # as in SampleInfo
    earned: float | None
    calls: list[list[Call]]  # of every answer but the first, in their order
    forks: tuple[Fork, ...] = ()  # as in SampleInfo
    last: int | None = None  # likewise
    said: tuple[str, ...] = ()  # as in SampleInfo
    state: str = ""  # as in SampleInfo
    turn_rewards: tuple[float, ...] = ()  # as in SampleInfo

    def attach(self, info: SampleInfo, *, said: bool = False) -> SampleInfo:
        """The info with its turns; `said`: also with the messages and the state."""
        attached = msgspec.structs.replace(
            info,
            turns=self.turns,
            earned=self.earned,
            turn_rewards=list(self.turn_rewards),
            forks=list(self.forks),
            last=self.last,
        )
        return msgspec.structs.replace(attached, said=list(self.said), state=self.state) if said else attached


def answer_key(journal: bytes, number: int) -> bytes:
    return journal + (2 * number).to_bytes(4, "big")


def turn_key(journal: bytes, number: int) -> bytes:
    return journal + (2 * number + 1).to_bytes(4, "big")


def begun_key(journal: bytes, number: int) -> bytes:
    return journal + (BEGUN + number).to_bytes(4, "big")


def number_of(key: Any) -> int:
    """Of the entry, as above."""
    return int.from_bytes(key[-4:], "big")


def pack(key: bytes, content: Entry | Finished) -> bytes:
    return frames.pack_struct(content, key)


def unpack(key: Any, value: Any) -> Entry:
    """Raises `StoreDamaged` naming the sample when the bytes are not those that were written under this key."""
    return frames.unpack_struct(value, Entry, f"sample {records.sample_of(bytes(key))}: its turns are", key)


def unpack_finished(key: Any, value: Any) -> Finished:
    """Likewise."""
    return frames.unpack_struct(value, Finished, f"sample {records.name_of(bytes(key))}: its turns are", key)
