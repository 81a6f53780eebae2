"""Bytes at rest: zstd frames, each with a checksum and its own length and level, or values behind a checksum of their
key and of themselves, of which many are structs as MessagePack."""

from __future__ import annotations

import threading
import zlib
from typing import Any, TypeVar

import msgspec
import zstandard

from rhymed.core.errors import StoreDamaged

RESCUE = "check the disk; the rest of the store can still be read"
CHECK_BYTES = 4  # of the checksum of a short value
MOST_RATIO = 1 << 15  # of zstd: a block of 4 bytes holds at most 128 KiB

_local = threading.local()

Struct = TypeVar("Struct")


def checked(body: bytes, key: Any = b"") -> bytes:
    """Behind its checksum."""
    return _checksum(body, key) + body


def unchecked(value: Any, key: Any = b"") -> bytes:
    """What `checked` got. Raises `ValueError` when the bytes are not those that were written under this key."""
    body = bytes(value[CHECK_BYTES:])
    if bytes(value[:CHECK_BYTES]) != _checksum(body, key):
        raise ValueError("its checksum differs")
    return body


def _checksum(body: bytes, key: Any) -> bytes:
    return zlib.crc32(body, zlib.crc32(key)).to_bytes(CHECK_BYTES, "little")


def pack_struct(content: Any, key: Any = b"") -> bytes:
    return checked(msgspec.msgpack.encode(content), key)


def unpack_struct(value: Any, kind: type[Struct], what: str, key: Any = b"") -> Struct:
    """Raises `StoreDamaged` when the bytes are not those that were written under this key; `what` is damaged."""
    try:
        return msgspec.msgpack.decode(unchecked(value, key), type=kind)
    except (ValueError, msgspec.MsgspecError) as error:
        raise StoreDamaged(f"{what} damaged at rest ({error}); {RESCUE}") from None


def pack_bytes(data: Any, level: int) -> bytes:
    return compressor(level).compress(data)


def unpack_bytes(frame: Any, what: object, size: int | None = None) -> bytes:
    """The content, of `size` bytes where that is known. Raises `StoreDamaged` naming `what`.

    Nothing is allocated for a damaged header that claims another size, or one that no frame of this length holds.
    """
    try:
        claimed = zstandard.frame_content_size(frame)
        if size is not None and claimed != size:
            raise StoreDamaged(f"{what}: {claimed} bytes, {size} were written; {RESCUE}")
        if claimed > len(frame) * MOST_RATIO:
            raise StoreDamaged(f"{what}: damaged at rest ({claimed} bytes claimed by {len(frame)}); {RESCUE}")
        return _decompressor().decompress(frame)
    except zstandard.ZstdError as error:
        raise StoreDamaged(f"{what}: damaged at rest ({error}); {RESCUE}") from None


def compressor(level: int) -> zstandard.ZstdCompressor:
    """This thread's own one: they are neither thread-safe nor cheap to create."""
    cached: zstandard.ZstdCompressor | None = getattr(_local, f"level{level}", None)
    if cached is None:
        cached = zstandard.ZstdCompressor(level=level, write_checksum=True)
        setattr(_local, f"level{level}", cached)
    return cached


def _decompressor() -> zstandard.ZstdDecompressor:
    cached: zstandard.ZstdDecompressor | None = getattr(_local, "decompressor", None)
    if cached is None:
        cached = _local.decompressor = zstandard.ZstdDecompressor()
    return cached
