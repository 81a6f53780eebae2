"""An open file of weights as slices that can be sent without a copy.

The file stays readable when its name is removed. Knows no sockets.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any, NamedTuple

from rhymed.errors import WireError
from rhymed_workers.weights.slices import Slicing


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
            self._map = mmap.mmap(self._descriptor, slicing.size, prot=mmap.PROT_READ | mmap.PROT_WRITE * writable)
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

    def room(self, index: int) -> memoryview:
        """The slice of a writable file, to be filled. Its place is taken first: a full disk would end a process that
        writes to a mapped file. Blocking. Raises `OSError`."""
        start, length = self.slicing.start(index), self.slicing.length(index)
        os.posix_fallocate(self._descriptor, start, length)
        return memoryview(self._map)[start : start + length]

    def write(self, index: int, content: Any, offset: int = 0) -> None:
        """`offset` in the slice. Blocking. Raises `OSError`."""
        start, view = self.slicing.start(index) + offset, memoryview(content)
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
