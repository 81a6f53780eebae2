"""How a file of weights is divided, verified and timed. Pure.

A file is cut into slices of equal size. A slice is the unit of transport, of verification and of relaying: it is
served by a host only after its digest, which comes from the trainer, was found right.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from rhymed.errors import WireError

try:
    import blake3
except ImportError:  # optional: several times as fast as what Python has
    blake3 = None  # type: ignore[assignment]

Buffer: TypeAlias = Any  # bytes or memoryview

SLICES = 256  # of a file that is neither small nor large
SMALLEST_BYTES, LARGEST_BYTES = 1 << 20, 16 << 20
IN_FLIGHT = 8  # slices that one host fetches at the same time
SLOWEST_TRAINER, SLOWEST_RELAY = 1e6, 1e7  # bytes per second; a relay that is slower costs more than it saves
LATENCY_S = 10.0  # of an answer, without its transfer


def _blake3(content: Buffer) -> str:
    return str(blake3.blake3(content).hexdigest(16))


def _blake2b(content: Buffer) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


DIGESTS: dict[str, Callable[[Buffer], str]] = {"blake2b": _blake2b}
if blake3 is not None:
    DIGESTS = {"blake3": _blake3, **DIGESTS}
"""128 bits in hex, by name; the fastest first. Both leave Python's lock while they compute."""


def common_algorithm(theirs: Sequence[str]) -> str:
    """The first of `theirs` that is known here. All know blake2b."""
    return next((name for name in theirs if name in DIGESTS), "blake2b")


@dataclass(frozen=True)
class Slicing:
    size: int  # bytes of the file
    slice_bytes: int

    @property
    def count(self) -> int:
        return -(-self.size // self.slice_bytes)

    def start(self, index: int) -> int:
        """Raises `WireError` if the file has no such slice."""
        if not 0 <= index < self.count:
            raise WireError(f"slice {index} of a file that has {self.count}")
        return index * self.slice_bytes

    def length(self, index: int) -> int:
        return min(self.slice_bytes, self.size - self.start(index))


def slicing(size: int) -> Slicing:
    """The slice size is a power of two."""
    wanted = 1 << max(0, size // SLICES - 1).bit_length()
    return Slicing(size, min(LARGEST_BYTES, max(SMALLEST_BYTES, wanted)))


def deadline_s(length: int, from_relay: bool) -> float:
    """For one slice: at the slowest rate that counts as alive, with all that is in flight ahead of it."""
    return LATENCY_S + IN_FLIGHT * length / (SLOWEST_RELAY if from_relay else SLOWEST_TRAINER)
