"""What each scorer gave a sample, at rest: JSON behind a checksum of the sample's key and of itself. Pure."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import msgspec

from rhymed.errors import StoreDamaged
from rhymed_store.codec import records
from rhymed_store.codec.frames import RESCUE

_CHECK = 4  # bytes of the checksum


def pack(key: bytes, parts: Mapping[str, float]) -> bytes:
    """`key`: the sample's. Raises `MalformedMessage` for a number that is not finite."""
    for name, value in parts.items():
        records.check_reward(value, f"sample {records.name_of(key)}, {name}")
    body = msgspec.json.encode(parts)
    return _checksum(key, body) + body


def unpack(key: Any, value: Any) -> dict[str, float]:
    """Scorer -> its reward before its weight. Raises `StoreDamaged` naming the sample."""
    body = bytes(value[_CHECK:])
    try:
        if bytes(value[:_CHECK]) != _checksum(key, body):
            raise ValueError("their checksum differs")
        return msgspec.json.decode(body, type=dict[str, float])
    except (ValueError, msgspec.MsgspecError) as error:
        raise StoreDamaged(
            f"sample {records.name_of(key)}: the parts of its reward are damaged at rest ({error}); {RESCUE}"
        ) from None


def _checksum(key: Any, body: bytes) -> bytes:
    return zlib.crc32(body, zlib.crc32(key)).to_bytes(_CHECK, "little")
