"""The engine's side: the tensors of a version from memory that the trainer offers, or from the file next to it.

Everything that may fail does so before the first tensor is given away. Then the caller takes the file, which always
exists. In memory that was opened nothing changes until it is closed, whatever the trainer does.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rhymed.errors import ConfigError, WireError
from rhymed_workers.lora.folder import Entry, file_entries
from rhymed_workers.weights.shared.handle import Handle, open_memory
from rhymed_workers.weights.shared.offer import HANDLE, READERS

if TYPE_CHECKING:
    from torch import Tensor

TYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


class Layout:
    """Where the tensors of the safetensors file `path` are in its content behind the header. Raises `WireError`."""

    def __init__(self, path: Path) -> None:
        self._entries = _entries(path)
        self._start = min((entry.start for entry in self._entries.values()), default=0)
        self.size = max((entry.end for entry in self._entries.values()), default=0) - self._start

    def tensors(self, memory: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Parts of `memory`, (size,) bytes that have this content."""
        import torch

        for name, entry in self._entries.items():
            part = memory[entry.start - self._start : entry.end - self._start]
            yield name, part.view(getattr(torch, TYPES[entry.dtype])).view(entry.shape)


class Opened:
    """The offer next to the safetensors file `path`, opened on `device`. Raises `WireError` with the reason if there
    is none, or none that this process can map."""

    def __init__(self, path: Path, device: Any) -> None:
        self._device = device
        self._layout = Layout(path)
        self._claim: int | None = _claim(path)
        try:
            handle = _handle(path)
            if handle.size != self._layout.size:
                raise WireError(f"memory of {handle.size} bytes is offered for a file with {self._layout.size}")
            self._memory: Tensor | None = open_memory(handle, device)
        except BaseException:
            self.close()
            raise
        self.gpu = handle.gpu  # empty: host memory

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Parts of the memory: they must not be used after `close`."""
        assert self._memory is not None, "not after close"
        return self._layout.tensors(self._memory)

    def close(self) -> None:
        """When everything is copied. Waits for copies that the device has not made yet."""
        if getattr(self, "_memory", None) is not None and self.gpu:
            import torch

            torch.accelerator.synchronize(self._device)
        self._memory = None
        if self._claim is not None:
            os.close(self._claim)
            self._claim = None


def _entries(path: Path) -> dict[str, Entry]:
    try:
        return file_entries(path)
    except ConfigError as error:
        raise WireError(str(error)) from error


def _claim(path: Path) -> int:
    """From now on the memory is not freed, if it is offered."""
    try:
        descriptor = os.open(path.with_suffix(READERS), os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise WireError("the trainer offers no memory of this version") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise WireError("the trainer offers the memory of this version no more") from None
    return descriptor


def _handle(path: Path) -> Handle:
    try:
        descriptor = os.open(path.with_suffix(HANDLE), os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise WireError("the trainer offers the memory of this version no more") from error
    try:
        if _free(descriptor):
            raise WireError("the trainer that offered memory has ended")
        return msgspec.msgpack.decode(os.read(descriptor, 1 << 16), type=Handle)
    except msgspec.MsgspecError as error:
        raise WireError(f"{path.with_suffix(HANDLE)} is no handle: {error}") from error
    finally:
        os.close(descriptor)


def _free(descriptor: int) -> bool:
    """Whether no process holds the lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
