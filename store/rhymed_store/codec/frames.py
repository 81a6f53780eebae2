"""Compressed bytes at rest: zstd frames, each with a checksum, which tell their own length and level."""

from __future__ import annotations

import threading
from typing import Any

import zstandard

from rhymed.errors import StoreDamaged

RESCUE = "check the disk; the rest of the store can still be read"

_local = threading.local()


def pack_bytes(data: Any, level: int) -> bytes:
    return compressor(level).compress(data)


def unpack_bytes(frame: Any, what: object) -> bytes:
    try:
        return _decompressor().decompress(frame)
    except zstandard.ZstdError as error:
        raise StoreDamaged(f"{what}: damaged at rest ({error}); {RESCUE}") from None


def compressor(level: int) -> zstandard.ZstdCompressor:
    """This thread's own: they are neither thread-safe nor cheap to make."""
    found: zstandard.ZstdCompressor | None = getattr(_local, f"level{level}", None)
    if found is None:
        found = zstandard.ZstdCompressor(level=level, write_checksum=True)
        setattr(_local, f"level{level}", found)
    return found


def _decompressor() -> zstandard.ZstdDecompressor:
    found: zstandard.ZstdDecompressor | None = getattr(_local, "decompressor", None)
    if found is None:
        found = _local.decompressor = zstandard.ZstdDecompressor()
    return found
