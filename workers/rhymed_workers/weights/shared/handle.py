"""Memory of one process that another one maps: its handle as plain data, made and opened by torch.

On an NVIDIA or AMD GPU it is an inter-process handle of the driver, which only processes with the same GPU can open;
on processors it is shared memory that torch's manager removes when its processes have ended. Not tried on a GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from rhymed.errors import WireError

if TYPE_CHECKING:
    from torch import Tensor

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
    """`memory`: from `allocate`; its owner keeps it for as long as somebody may open the handle."""
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
