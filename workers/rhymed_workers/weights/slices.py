"""How a file of weights is divided, verified and timed, and such a file as slices.

A file is cut into slices of equal size. A slice is the unit of transport, of verification and of relaying: it is
served by a host only after its digest, which comes from the trainer, was found right.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rhymed.core.errors import WireError

SLICES = 256  # of a file that is neither small nor large
SMALLEST_BYTES, LARGEST_BYTES = 1 << 20, 16 << 20
IN_FLIGHT = 8  # slices that one host fetches at the same time
SLOWEST_TRAINER, SLOWEST_RELAY = 1e6, 1e7  # bytes per second; a relay that is slower costs more than it saves
LATENCY_S = 10.0  # of an answer, without its transfer


def digest(content: Any) -> str:
    """SHA-256 of a slice in hex: processors have instructions for it. Leaves Python's lock while it computes."""
    return hashlib.sha256(content).hexdigest()


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


# An open file of weights as slices that can be sent without a copy.
#
# The file stays readable when its name is removed. Knows no sockets.


class MappedFile:
    """Closed when nothing refers to it any more: frames that are being sent do."""

    def __init__(self, path: Path, slicing: Slicing, *, writable: bool = False) -> None:
        """`writable`: makes the file, and readable only by its owner. Raises `OSError`."""
        self.path, self.slicing = path, slicing
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL if writable else os.O_RDONLY
        self._descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
        try:
            if writable:
                os.truncate(self._descriptor, slicing.size)
            self.check()
            self._map = mmap.mmap(self._descriptor, slicing.size, prot=mmap.PROT_READ)
        except BaseException:
            os.close(self._descriptor)
            raise

    def __del__(self) -> None:
        if hasattr(self, "_map"):
            os.close(self._descriptor)

    @property
    def named(self) -> bool:
        """Whether its path still leads to it."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._descriptor))
        except OSError:
            return False

    def check(self) -> None:
        """Raises `WireError` if it was cut off: reading behind a mapped file's end would end the process."""
        size = os.fstat(self._descriptor).st_size
        if size != self.slicing.size:
            raise WireError(f"{self.path} has {size} bytes, not {self.slicing.size}: another program changed it")

    def slice(self, index: int) -> memoryview:
        """Blocking only if the file is on a disk. Raises `WireError`."""
        start = self.slicing.start(index)
        self.check()
        return memoryview(self._map)[start : start + self.slicing.length(index)].toreadonly()

    def write(self, index: int, content: Any) -> None:
        """Blocking. Raises `OSError`."""
        start, view = self.slicing.start(index), memoryview(content)
        done = 0
        while done < len(view):
            done += os.pwrite(self._descriptor, view[done:], start + done)

    def copy_to(self, path: Path) -> None:
        """Blocking. Raises `OSError`."""
        target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            done = 0
            while done < self.slicing.size:
                done += os.sendfile(target, self._descriptor, done, self.slicing.size - done)
        finally:
            os.close(target)


class Published(NamedTuple):
    """A version's file, complete."""

    version: int
    edition: str  # random id
    path: Path
    size: int  # bytes
    file: MappedFile
