"""What training needs of a sample besides its tokens, at rest: log-probs and their floors.

An entry lives until a checkpoint covers the step. It is not compressed: mantissas are noise. Pure.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from rhymed.core.errors import StoreDamaged
from rhymed_store.codec import frames
from rhymed_store.codec.frames import RESCUE


class Entry(NamedTuple):
    logprobs: bytes  # float32, one per response token
    floors: bytes = b""  # likewise, as in PutSamples; empty: it has none


def pack(entry: Entry) -> bytes:
    return frames.pack_struct(entry)


def unpack(value: Any, length: int, what: object) -> Entry:
    """Raises `StoreDamaged` naming `what` when the bytes are not those that were written for so many tokens."""
    entry = frames.unpack_struct(value, Entry, f"{what}: its log-probs are")
    if len(entry.logprobs) != 4 * length or len(entry.floors) not in (0, 4 * length):
        raise StoreDamaged(f"{what}: log-probs or floors of another number of tokens; {RESCUE}")
    return entry
