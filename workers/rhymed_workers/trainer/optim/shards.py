"""Tensors of a checkpoint besides the model's, `NAME.state`: one file, or one of each of several ranks.

The files are safetensors files with another suffix, so that engines do not take them for a part of the model. Of a
tensor that ranks share, each one's file has its rows, in the order of the ranks; all other tensors are in the first
one's. So one process, or another number of ranks, reads the rows that it needs from all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rhymed.core.errors import CheckpointError

SUFFIX = ".state"


def save(folder: Path, name: str, tensors: Mapping[str, Tensor], rank: int) -> list[str]:
    """This rank's file; returns its name."""
    from safetensors.torch import save_file

    mine = {key: own(tensor) for key, tensor in tensors.items() if rank == 0 or hasattr(tensor, "placements")}
    file = f"{name}-{rank:04d}{SUFFIX}" if rank else f"{name}{SUFFIX}"
    save_file({key: tensor.contiguous() for key, tensor in mine.items()}, folder / file)
    return [file]


def own(tensor: Any) -> Tensor:
    """This rank's rows of a tensor that ranks share; of any other, all."""
    if not hasattr(tensor, "placements"):
        return torch.as_tensor(tensor)
    assert all(place.is_shard(0) for place in tensor.placements), "ranks share rows"
    mine: Tensor = tensor.to_local()
    return mine


class Stored:
    """What was saved under a name, from which each tensor is taken once. `left`: the others."""

    def __init__(self, folder: Path, name: str) -> None:
        """Raises `CheckpointError`."""
        from safetensors import SafetensorError, safe_open

        self.place = folder / f"{name}{SUFFIX}"
        try:
            files = [self.place, *sorted(folder.glob(f"{name}-*{SUFFIX}"))]
            self._files: list[Any] = [safe_open(file, framework="pt") for file in files]
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{self.place} cannot be read: {error!r}") from error
        self._keys = [set(file.keys()) for file in self._files]
        self.left = set[str]().union(*self._keys)

    def take(self, key: str, like: Any) -> Tensor | None:
        """The tensor, or this rank's rows where `like` is shared. None if there is none of its shape and type."""
        parts = [file for file, keys in zip(self._files, self._keys, strict=True) if key in keys]
        self.left.discard(key)
        if not parts:
            return None
        found = _rows(parts, key, like) if hasattr(like, "placements") else _whole(parts, key)
        wanted = own(like)
        alike = not isinstance(like, Tensor) or (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
        return found if alike else None


def _whole(parts: list[Any], key: str) -> Tensor:
    tensors = [part.get_tensor(key) for part in parts]
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


def _rows(parts: list[Any], key: str, like: Any) -> Tensor:
    """Those of this rank: torch divides rows as `torch.chunk` does."""
    slices = [part.get_slice(key) for part in parts]
    counts = [one.get_shape()[0] for one in slices]
    if sum(counts) != like.shape[0]:
        return _whole(parts, key)  # of another shape
    size = -(-like.shape[0] // like.device_mesh.size())
    first = min(like.shape[0], size * like.device_mesh.get_local_rank())
    last, at, found = first + len(own(like)), 0, list[Tensor]()
    for one, count in zip(slices, counts, strict=True):
        low, high = max(0, first - at), min(count, last - at)
        if low < high:
            found.append(one[low:high])
        at += count
    return torch.cat(found) if found else torch.empty_like(own(like))
