"""An optimizer's state in a checkpoint of several ranks: torch's distributed checkpoint (DCP), a file for each rank.

The names of the tensors are those of `moments`. The parts in the files are independent of the number of ranks that
read them: one process reads all of them, other ranks the parts that they need.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from rhymed.errors import CheckpointError
from rhymed_workers.trainer.optim import moments

FOLDER = "optimizer"
"""Of the policy's, in a checkpoint."""


def save(place: Path, tensors: Mapping[str, Tensor], group: Any) -> None:
    """`tensors`: this rank's parts of the state. All ranks call it. `group`: by which they agree on who writes what.
    Raises `CheckpointError`, in all ranks."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        dcp.save(dict(tensors), checkpoint_id=place, process_group=group)
    except CheckpointException as error:
        rank, (reason, _) = next(iter(error.failures.items()))
        raise CheckpointError(f"{place} cannot be written by rank {rank}: {reason}") from None


def own_files(checkpoint: Path, rank: int) -> list[Path]:
    """Of a checkpoint, those that this rank has written."""
    mine = sorted(checkpoint.glob(f"*/__{rank}_*"))
    return [*mine, *checkpoint.glob("*/.metadata")] if rank == 0 else mine


def load(
    place: Path,
    optimizer: torch.optim.Optimizer,
    named: moments.Named,
    more: Mapping[str, Tensor] = MappingProxyType({}),
) -> None:
    """Restores the state of these parameters, and in place the tensors of `more`. Raises `CheckpointError` if it is
    another optimizer's or model's.
    """
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        have = set(dcp.FileSystemReader(place).read_metadata().state_dict_metadata)
        states = {
            name: (parameter, moments.fresh(optimizer, parameter))
            for name, parameter in named
            if f"step.{name}" in have
        }
        wanted = {f"{key}.{name}": value for name, (_, state) in states.items() for key, value in state.items()}
        wanted |= more
        if odd := sorted(have ^ wanted.keys()):
            raise CheckpointError(
                f"{place} is not of this model and trainer.optimizer = adamw, first {odd[0]}: continue with those"
                " that wrote it"
            )
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # one process reads it as well
            dcp.load(wanted, checkpoint_id=place)
    except (OSError, ValueError, KeyError, EOFError, pickle.PickleError, CheckpointException) as error:
        raise CheckpointError(f"{place} cannot be read: {error!r}") from error
    for name, (parameter, state) in states.items():
        optimizer.state[parameter] = _kept(state, wanted, name)


def _kept(state: Mapping[str, Any], loaded: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Tensors are loaded in place, other values are replaced."""
    return {key: loaded[f"{key}.{name}"] for key in state}
