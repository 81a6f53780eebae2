"""Copies for checkpoints, so that a step may change what is still being written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from torch import Tensor

Write = Callable[[Path], None]
"""Writes into a checkpoint's folder what was taken, on any thread. Several ranks call theirs at the same time."""


def taken(tensors: Mapping[str, Tensor], *, copy: bool) -> dict[str, Tensor]:
    """`copy`: into host memory; else the tensors themselves. Of parts of tensors on several ranks, the parts."""
    return {
        name: tensor.detach().to("cpu", copy=True) if copy else tensor.detach() for name, tensor in tensors.items()
    }
