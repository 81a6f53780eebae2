"""Which tokens of a response were accepted drafts, at rest: a bit per token or, where that is shorter, deflated.

A mask follows its response's frame in the token stream and begins with a checksum. Pure: knows neither records nor
the stream.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from rhymed.core.errors import MalformedMessage, StoreDamaged
from rhymed_store.codec import frames
from rhymed_store.codec.frames import RESCUE

_LEAST = 16  # bytes below which deflating does not pay


def bytes_of(length: int) -> int:
    return (length + 7) // 8


def cut(message: str, frame: bytes, lengths: Sequence[int], masked: Sequence[bool]) -> list[bytes | None]:
    """The bits of each response in the frame of a message; None where they are unknown. Raises `MalformedMessage`."""
    if len(masked) != len(lengths):
        raise MalformedMessage(f"{message}: drafted covers {len(masked)} samples, there are {len(lengths)}")
    sizes = [bytes_of(length) if has_mask else 0 for length, has_mask in zip(lengths, masked, strict=True)]
    if len(frame) != sum(sizes):
        raise MalformedMessage(f"{message}: {len(frame)} bytes of accepted drafts, {sum(sizes)} announced")
    ends = accumulate(sizes)
    return [
        bytes(frame[end - size : end]) if has_mask else None
        for size, end, has_mask in zip(sizes, ends, masked, strict=True)
    ]


def pack(bits: bytes) -> bytes:
    """`bits` as in `messages.PutSamples`. A byte before them says whether they are deflated."""
    body = b"\0" + bits
    if len(bits) >= _LEAST:
        short = b"\1" + zlib.compress(bits, 6, -zlib.MAX_WBITS)
        body = min(body, short, key=len)
    return frames.checked(body)


def unpack(value: bytes, length: int, what: object) -> NDArray[np.bool_]:
    """The mask of `length` tokens. Raises `StoreDamaged` naming `what` when the bytes are not those written."""
    size = bytes_of(length)
    try:
        body = frames.unchecked(value)
        if not body:
            raise ValueError("it is empty")
        bits = zlib.decompressobj(-zlib.MAX_WBITS).decompress(body[1:], size + 1) if body[0] else body[1:]
        if len(bits) != size:
            raise ValueError(f"{len(bits)} bytes, {size} were written")
    except (ValueError, zlib.error) as error:
        raise StoreDamaged(f"{what}: which tokens were drafted is damaged at rest ({error}); {RESCUE}") from None
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=length).astype(np.bool_)
