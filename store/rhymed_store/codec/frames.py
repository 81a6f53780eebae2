"""Compressed bytes at rest: zstd frames, each with a checksum and its own length and level."""

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
