"""The child's side of a jailed process: its pipes, frames over them, and limits. See `jailed` for the parent's side.

Imports the standard library alone: a program of a session starts through it (rhymed_workers.sessions.child).
"""

from __future__ import annotations

import os
import resource
import struct
from typing import BinaryIO

HEAD = struct.Struct("<I")


def claim_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Move the pipes out of reach of print and of grandchildren (a duplicate is not inherited)."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return requests, answers


def limit(kind: int, most: float) -> None:
    """`most` 0: no limit. RLIMIT_DATA bounds private writable memory: a runaway expression gets a MemoryError."""
    if most:
        _, hard = resource.getrlimit(kind)
        resource.setrlimit(kind, (int(most) if hard < 0 else min(int(most), hard), hard))


def get(pipe: BinaryIO) -> bytes | None:
    """None: the pipe was closed, maybe within a frame."""
    head = pipe.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    (length,) = HEAD.unpack(head)
    body = pipe.read(length)
    return body if len(body) == length else None


def put(pipe: BinaryIO, body: bytes) -> None:
    pipe.write(HEAD.pack(len(body)) + body)
    pipe.flush()
