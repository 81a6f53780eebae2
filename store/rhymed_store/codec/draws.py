"""What trained steps drew from the plan, at rest: a line per step in the table `meta`, kept for good. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from rhymed.errors import StoreDamaged
from rhymed.messages import Drawn
from rhymed_store.codec import frames
from rhymed_store.codec.frames import RESCUE

PREFIX = b"drawn/"  # of their keys


def key(step: int) -> bytes:
    return PREFIX + f"{step:010}".encode()


def pack(drawn: Drawn) -> bytes:
    return frames.pack_bytes(msgspec.json.encode(drawn), 1)


def unpack(at: Any, value: Any) -> Drawn:
    """Raises `StoreDamaged`."""
    what = f"the prompts of step {bytes(at).removeprefix(PREFIX).decode(errors='replace').lstrip('0') or '0'}"
    try:
        return msgspec.json.decode(frames.unpack_bytes(value, what), type=Drawn)
    except msgspec.MsgspecError as error:
        raise StoreDamaged(f"{what} are damaged at rest ({error}); {RESCUE}") from None
