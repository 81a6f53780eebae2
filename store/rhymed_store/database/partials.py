"""Partial samples in chunks, so that new tokens are appended without rewriting the earlier ones.

A chunk's key is the sample's journal key and the position of its first token. Invariant: the chunks of a sample are
contiguous from position 0, so what is read has no hole. Chunks live for seconds and are short: raw tokens after a
checksum, since a compressed frame of thirty tokens is mostly header. Knows the table, not who may write.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rhymed.core.errors import StoreDamaged
from rhymed.core.messages import SampleId
from rhymed_store.codec import frames, records

MOST_TOKENS = (1 << 32) - 1  # of one sample: positions have four bytes
HEADER_BYTES = 32  # of a chunk in addition to its tokens
_NUMBERS = {2: "<u2", 4: "<u4"}  # bytes a token, the first byte of a chunk: numpy's name


def put(cursor: Any, sample: SampleId, start: int, tokens: Any) -> bool:
    """Replace everything from `start` by `tokens`, uint32 bytes. False, and nothing written, if that left a hole."""
    low = records.journal_key(sample)
    if start and not _cut_at(cursor, low, start):
        return False
    remove(cursor, low, start)
    if len(tokens) or not start:  # a sample without tokens yet is recorded too
        cursor.put(_key(low, start), pack(np.frombuffer(tokens, "<u4")))
    return True


def _cut_at(cursor: Any, low: bytes, start: int) -> bool:
    """Whether the chunks reach `start`; one that reaches past it is cut there."""
    inside = cursor.set_range(_key(low, start))
    if not (cursor.prev() if inside else cursor.last()):
        return False
    key = bytes(cursor.key())
    if key[:-4] != low:
        return False
    try:
        first, chunk = position(key), unpack(cursor.value(), "a chunk of a beginning")
    except StoreDamaged:
        return False
    if first + len(chunk) > start:
        cursor.put(key, pack(chunk[: start - first]))
    return first + len(chunk) >= start


def remove(cursor: Any, low: bytes, start: int = 0) -> None:
    """Delete the chunks from `start` on of the sample with this journal key."""
    while cursor.set_range(_key(low, start)) and cursor.key()[:-4] == low:
        cursor.delete()


def get(cursor: Any, sample: SampleId) -> NDArray[np.uint32] | None:
    """Tokens up to the first gap or damaged chunk; None if there are no chunks."""
    chunks, end = [], 0
    for first, chunk in _chunks(cursor, records.journal_key(sample), f"the beginning of sample {sample}"):
        if first != end:
            break
        chunks.append(chunk)
        end += len(chunk)
    return np.concatenate(chunks) if chunks else None


def begun(cursor: Any, low: bytes) -> Iterator[SampleId]:
    """Samples that have chunks, from this journal key on."""
    there = cursor.set_range(low)
    while there:
        key = bytes(cursor.key())[:-4]
        yield records.sample_of(key)
        there = cursor.set_range(key + b"\xff" * 5)


def _chunks(cursor: Any, low: bytes, what: str) -> Iterator[tuple[int, NDArray[np.uint32]]]:
    there = cursor.set_range(low)
    while there and cursor.key()[:-4] == low:
        try:
            yield position(cursor.key()), unpack(cursor.value(), what)
        except StoreDamaged:
            return  # the earlier chunks are sound, and the rest can be generated again
        there = cursor.next()


def pack(tokens: NDArray[np.uint32]) -> bytes:
    width = 2 if records.width_of(tokens) == 2 else 4
    return frames.checked(bytes([width]) + tokens.astype(_NUMBERS[width]).tobytes())


def unpack(value: Any, what: object) -> NDArray[np.uint32]:
    """A copy. Raises `StoreDamaged` naming `what` when the bytes are not those that were written."""
    try:
        body = frames.unchecked(value)
        return np.frombuffer(body, _NUMBERS[body[0]], offset=1).astype(np.uint32)
    except (ValueError, LookupError):
        raise StoreDamaged(f"{what}: damaged at rest; {frames.RESCUE}") from None


def position(key: Any) -> int:
    return int.from_bytes(key[-4:], "big")


def _key(low: bytes, start: int) -> bytes:
    return low + start.to_bytes(4, "big")
