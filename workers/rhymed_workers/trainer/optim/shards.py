"""An optimizer's state in a checkpoint of several ranks: torch's distributed checkpoint (DCP), a file for each rank.

The names of the tensors are those of `moments`. The parts in the files are independent of the number of ranks that
read them: one process reads all of them, other ranks the parts that they need.

Torch keeps their metadata as a pickle, and unpickles it without a limit. Here it may only describe tensors: a user
who can change a checkpoint cannot run code in the trainer.
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

from rhymed.core.errors import CheckpointError
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
        reader = _reader(place)
        have = set(reader.read_metadata().state_dict_metadata)
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
            dcp.load(wanted, storage_reader=reader)
    except (OSError, ValueError, KeyError, pickle.PickleError, CheckpointException) as error:
        raise CheckpointError(f"{place} cannot be read: {error!r}") from error
    for name, (parameter, state) in states.items():
        optimizer.state[parameter] = _kept(state, wanted, name)


DESCRIPTIONS = {
    "torch.distributed.checkpoint.metadata": {
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },  # not BytesStorageMetadata: of such an entry, torch unpickles the content as well
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.serialization": {"_get_layout"},  # reads an attribute by its name
    "pathlib": {"Path", "PosixPath", "PurePath", "PurePosixPath"},
    "pathlib._local": {"Path", "PosixPath"},
}
"""All names in the metadata of tensors, in addition to `torch.Size` and dtypes."""


class _Metadata(pickle.Unpickler):
    """Raises `UnpicklingError` at every name that does not describe tensors."""

    def find_class(self, module: str, name: str) -> Any:
        if name in DESCRIPTIONS.get(module, ()):
            return super().find_class(module, name)
        if module == "torch" and isinstance(found := getattr(torch, name, None), torch.dtype):
            return found
        if (module, name) == ("torch", "Size"):
            return torch.Size
        raise pickle.UnpicklingError(f"its metadata asks for {module}.{name}, which no checkpoint of a run has")


def _metadata(file: Path) -> Any:
    """Raises `OSError`, `PickleError`."""
    from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

    with file.open("rb") as stream:
        try:
            found = _Metadata(stream).load()
        except (pickle.PickleError, OSError):
            raise
        except Exception as error:  # a pickle is a program: other bytes can make it raise any error
            raise pickle.UnpicklingError(f"{file.name} is damaged: {error!r}") from None
    if not isinstance(found, Metadata) or not isinstance(found.state_dict_metadata, dict):
        raise pickle.UnpicklingError(f"{file.name} describes no tensors")
    if not all(isinstance(one, TensorStorageMetadata) for one in found.state_dict_metadata.values()):
        raise pickle.UnpicklingError(f"{file.name} describes other things than tensors")
    for stored in dict(found.storage_data).values():
        if stored.relative_path != Path(stored.relative_path).name:
            raise pickle.UnpicklingError(f"{file.name} names {stored.relative_path}, outside of its folder")
    return found


def _reader(place: Path) -> Any:
    from torch.distributed.checkpoint import FileSystemReader
    from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

    class Reader(FileSystemReader):
        def read_metadata(self, *given: Any, **named: Any) -> Metadata:
            metadata: Metadata = _metadata(Path(self._get_metadata_path(named.get("rank"))))
            metadata.storage_meta = metadata.storage_meta or StorageMeta()
            metadata.storage_meta.load_id = self.load_id
            return metadata

    return Reader(place)


def _kept(state: Mapping[str, Any], loaded: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Tensors are loaded in place, other values are replaced."""
    return {key: loaded[f"{key}.{name}"] for key in state}
