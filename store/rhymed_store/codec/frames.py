"""Compressed bytes at rest: zstd frames, each with a checksum and its own length and level."""

from __future__ import annotations

import threading
from typing import Any

import zstandard

from rhymed.core.errors import StoreDamaged

RESCUE = "check the disk; the rest of the store can still be read"
MOST_RATIO = 1 << 15  # of zstd: a block of 4 bytes holds at most 128 KiB

_local = threading.local()


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
