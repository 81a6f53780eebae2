"""A process group of a trainer and its engines' ranks, apart from torch's default one: NCCL on GPUs, gloo elsewhere.

Every operation ends: with the chunk, or with `WireError` when a member is gone or silent. After an error the group is
of no use. NCCL was not tried.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rhymed.errors import WireError

if TYPE_CHECKING:
    from torch import Tensor

LOOPBACK = "lo"  # the group is of one machine: it does not encrypt
CHUNK_BYTES = 64 << 20
CHUNK_S = 30.0  # for one chunk: a member that is slower counts as gone
FORM_S = 60.0  # until all members have met


def store(path: Path) -> Any:
    """Torch's store of keys, in a file: who may not read the weights' folder finds no member."""
    from torch.distributed import FileStore

    return FileStore(str(path), -1)


def count(store: Any, key: str) -> int:
    """What was added up, without waiting."""
    return int(store.get(key)) if store.check([key]) else 0


class Group:
    """`store`: with keys that only this group has; `rank`: 0 is the trainer. Raises `WireError`."""

    def __init__(self, store: Any, rank: int, size: int, device: Any) -> None:
        self._on_cpu = device.type == "cpu"
        try:
            self._group = _form(store, rank, size, device)
        except RuntimeError as error:
            raise WireError(f"the members of a broadcast did not meet: {_line(error)}") from error

    def broadcast(self, memory: Tensor) -> None:
        """From the trainer's memory to that of all others, bytes of equal number. Blocking. Raises `WireError`."""
        from torch.distributed import BroadcastOptions

        options = BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        try:
            for start in range(0, len(memory), CHUNK_BYTES):
                work = self._group.broadcast([memory[start : start + CHUNK_BYTES]], options)
                work.wait(timedelta(seconds=CHUNK_S))
        except RuntimeError as error:
            raise WireError(f"the broadcast broke off: {_line(error)}") from error

    def close(self) -> None:
        """Ends what waits on a GPU for members that are gone."""
        if not self._on_cpu:
            self._group.abort()


def _form(store: Any, rank: int, size: int, device: Any) -> Any:
    import torch
    import torch.distributed as dist

    if device.type == "cpu":
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(interface=LOOPBACK)]
        options._timeout = timedelta(seconds=CHUNK_S)
        return dist.ProcessGroupGloo(store, rank, size, options)
    if not dist.is_nccl_available():
        raise RuntimeError("this torch has no NCCL")
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=FORM_S)  # more than CHUNK_S: torch's watchdog then ends the process
    with torch.cuda.device(device):
        return dist.ProcessGroupNCCL(store, rank, size, options)


def _line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
