"""The trainer's side: the newest version's weights in memory of its device, for engines that can map it.

The memory has the content of the version's safetensors file behind the header, so names, types and shapes are those
of the file, which is published anyway. Next to it lie the handle, locked for as long as the trainer lives, and a file
that every reader locks: memory is freed only when no reader holds it. All claims are locks of the system and end
with their processes.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rhymed import atomic
from rhymed_workers.weights.shared.handle import allocate, share

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger(__name__)

HANDLE, READERS = ".handle", ".readers"
MOST_HELD = 2  # versions whose readers are slow, before that is logged


class Offers:
    """At most one version is offered; memory of earlier ones is kept while it is read."""

    def __init__(self) -> None:
        self._newest: _Offer | None = None
        self._held: list[_Offer] = []

    def offer(self, path: Path, tensors: Sequence[tuple[str, Tensor]], starts: Sequence[int], dtype: str) -> None:
        """`starts`: where each tensor begins in the safetensors file at `path`. Blocking: a copy on the device."""
        self.withdraw()
        size = path.stat().st_size - starts[0] if starts else 0
        try:
            self._newest = _Offer(path, tensors, starts, size, dtype) if size else None
        except (RuntimeError, OSError) as error:  # no memory, most likely
            log.warning("the weights are not offered in memory, engines take %s: %s", path, error)

    def withdraw(self) -> None:
        """From now on no reader can begin."""
        if self._newest is not None:
            self._newest.end()
            self._held.append(self._newest)
            self._newest = None
        self._held = [offer for offer in self._held if not offer.free()]
        if len(self._held) > MOST_HELD:
            log.warning("%d versions are still read from memory: an engine is stopped", len(self._held))


class _Offer:
    def __init__(
        self, path: Path, tensors: Sequence[tuple[str, Tensor]], starts: Sequence[int], size: int, dtype: str
    ) -> None:
        self._path, device = path, tensors[0][1].device
        self._memory: Tensor | None = allocate(size, device)
        fill(self._memory, tensors, [start - starts[0] for start in starts], dtype)
        path.with_suffix(READERS).touch(0o600)
        with atomic.new_file(path.with_suffix(HANDLE), 0o600) as part:
            self._lock = os.open(part, os.O_RDWR | os.O_CLOEXEC)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            part.write_bytes(msgspec.msgpack.encode(share(self._memory)))

    def end(self) -> None:
        self._path.with_suffix(HANDLE).unlink(missing_ok=True)
        os.close(self._lock)

    def free(self) -> bool:
        """Whether its memory is free, because it has no reader. To be called after `end`."""
        readers = self._path.with_suffix(READERS)
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(readers, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            finally:
                os.close(descriptor)
            readers.unlink(missing_ok=True)
        self._memory = None
        return True


def fill(memory: Tensor, tensors: Sequence[tuple[str, Tensor]], starts: Sequence[int], dtype: str) -> None:
    """In the file's type. Waits for the device, because others read the memory without its queue."""
    import torch

    target: Any = getattr(torch, dtype)
    for (_, tensor), start in zip(tensors, starts, strict=True):
        memory[start : start + tensor.numel() * target.itemsize].view(target).copy_(tensor.reshape(-1))
    if memory.device.type != "cpu":
        torch.accelerator.synchronize(memory.device)
