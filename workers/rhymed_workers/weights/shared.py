"""The newest version's weights in memory of the trainer's device, for engines that can map it: both sides.

The memory has the content of the version's safetensors file behind the header, so names, types and shapes are those
of the file, which is published anyway. Next to it lie the handle, locked for as long as the trainer lives, and a file
that every reader locks: memory is freed only when no reader holds it. All claims are locks of the system and end
with their processes.

`Offers` is the trainer's side, `Opened` the engine's, and `Handle` what travels between them.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rhymed.core import atomic
from rhymed.core.errors import ConfigError, WireError
from rhymed_workers.lora.folder import Entry, file_entries

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
                if not _locks(descriptor, fcntl.LOCK_EX):
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


# Memory of one process that another one maps: its handle as plain data, made and opened by torch.
#
# On an NVIDIA or AMD GPU it is an inter-process handle of the driver, which only processes with the same GPU can
# open; on processors it is shared memory that torch's manager removes when its processes have ended. Not tried on a
# GPU.

OPEN_ERRORS = (RuntimeError, OSError, ValueError, TypeError, AttributeError, IndexError)
"""That torch raises for memory that is gone, or for a handle of something else."""


class Handle(msgspec.Struct, frozen=True):
    gpu: str  # its UUID; empty: host memory
    size: int  # bytes
    arguments: list[Any]  # of torch's function, without types and devices


def allocate(size: int, device: Any) -> Tensor:
    """(size,) bytes that can be shared, on a device of torch."""
    import torch

    if device.type != "cpu":
        return torch.empty(size, dtype=torch.uint8, device=device)
    storage = torch.UntypedStorage._new_using_filename_cpu(size)
    return torch.empty(0, dtype=torch.uint8).set_(storage, 0, (size,))


def share(memory: Tensor) -> Handle:
    """`memory`: from `allocate`; its owner keeps it as long as a process may open the handle."""
    if memory.device.type == "cpu":
        manager, name, size = memory.untyped_storage()._share_filename_cpu_()
        return Handle("", len(memory), [manager, name, size])
    from torch.multiprocessing.reductions import reduce_tensor

    _, (_, _, _, offset, _, _, _, *driver, _, counter, at, event, waits) = reduce_tensor(memory)
    return Handle(gpu_of(memory.device), len(memory), [offset, *driver, counter, at, event, waits])


def open_memory(handle: Handle, device: Any) -> Tensor:
    """(size,) bytes, not to be written. `device`: where the opener computes. Raises `WireError`."""
    try:
        return _open_host(handle) if not handle.gpu else _open_gpu(handle, device)
    except OPEN_ERRORS as error:
        raise WireError(f"memory of the trainer cannot be opened: {error}") from error


def _open_host(handle: Handle) -> Tensor:
    import torch

    manager, name, size = handle.arguments
    storage = torch.UntypedStorage._new_shared_filename_cpu(manager, name, size)
    return torch.empty(0, dtype=torch.uint8).set_(storage, 0, (handle.size,))


def _open_gpu(handle: Handle, device: Any) -> Tensor:
    import torch
    from torch.multiprocessing.reductions import rebuild_cuda_tensor

    if device.type != "cuda" or gpu_of(device) != handle.gpu:
        raise WireError(f"it is on GPU {handle.gpu}, which this engine does not use")
    offset, *driver, counter, at, event, waits = handle.arguments
    view = torch.Tensor, (handle.size,), (1,), offset
    storage = torch.storage.TypedStorage, torch.uint8, device.index or 0, *driver
    memory: Tensor = rebuild_cuda_tensor(*view, *storage, False, counter, at, event, waits)
    return memory


def gpu_of(device: Any) -> str:
    import torch

    return str(torch.cuda.get_device_properties(device).uuid)


# The engine's side: the tensors of a version from memory that the trainer offers, or from the file next to it.
#
# Everything that may fail does so before the first tensor is given away. Then the caller takes the file, which always
# exists. In memory that was opened nothing changes until it is closed, whatever the trainer does.

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
    if not _locks(descriptor, fcntl.LOCK_SH):
        os.close(descriptor)
        raise WireError("the trainer offers the memory of this version no more")
    return descriptor


def _handle(path: Path) -> Handle:
    try:
        descriptor = os.open(path.with_suffix(HANDLE), os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise WireError("the trainer offers the memory of this version no more") from error
    try:
        if _locks(descriptor, fcntl.LOCK_SH):
            raise WireError("the trainer that offered memory has ended")
        return msgspec.msgpack.decode(os.read(descriptor, 1 << 16), type=Handle)
    except msgspec.MsgspecError as error:
        raise WireError(f"{path.with_suffix(HANDLE)} is no handle: {error}") from error
    finally:
        os.close(descriptor)


def _locks(descriptor: int, kind: int) -> bool:
    """False: a process holds a lock that excludes it."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
