"""Exports a checkpoint as a plain Hugging Face folder, without the trainer's files, in any number format.

The folder appears complete or not at all. Weights are converted file by file; only checkpoints whose digests agree
with their manifest are exported.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Literal

from rhymed import atomic
from rhymed.errors import CheckpointError
from rhymed.run.checkpoint import MANIFEST, Checkpoint, at_step, checkpoints_in, newest

OURS = {MANIFEST, "trainer.json", "optimizer.state", "lineage.jsonl"}
INDEX = "model.safetensors.index.json"

DType = Literal["float32", "bfloat16", "float16"]


def chosen(folder: Path, step: int | None) -> Checkpoint:
    """The intact checkpoint of that step, or the newest intact one. Blocking: verifies its digests."""
    checkpoint = newest(folder) if step is None else at_step(folder, step)
    if checkpoint is None:
        there = ", ".join(str(other.step) for other in checkpoints_in(folder)) or "none"
        what = "no intact checkpoint" if step is None else f"no good checkpoint of step {step}"
        raise CheckpointError(f"{folder} has {what}; there: {there}")
    return checkpoint


def export(checkpoint: Checkpoint, target: Path, dtype: DType) -> None:
    """Write the folder `target`, which must not exist. Raises `CheckpointError`."""
    if target.exists():
        raise CheckpointError(f"{target} exists already; name a new folder")
    try:
        with atomic.new_folder(target) as folder:
            for file in sorted(checkpoint.folder.iterdir()):
                if file.suffix == ".safetensors":
                    _convert(file, folder / file.name, dtype)
                elif file.name not in OURS:
                    shutil.copyfile(file, folder / file.name)
            _rewrite(folder, dtype)
            for file in folder.iterdir():
                atomic.sync(file)
        atomic.sync(target.parent)
    except OSError as error:
        raise CheckpointError(f"{target} cannot be written: {error}") from error


def _convert(source: Path, target: Path, dtype: DType) -> None:
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file

    wanted = getattr(torch, dtype)
    with safe_open(source, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file(
        {name: tensor.to(wanted) if tensor.is_floating_point() else tensor for name, tensor in tensors.items()},
        target,
        metadata={"format": "pt"},
    )


def _rewrite(folder: Path, dtype: DType) -> None:
    """Correct the number format and size that the files state."""
    config = folder / "config.json"
    settings = json.loads(config.read_text())
    settings["dtype"] = dtype
    settings.pop("torch_dtype", None)
    config.write_text(json.dumps(settings, indent=2) + "\n")
    index = folder / INDEX
    if index.exists():
        content = json.loads(index.read_text())
        content["metadata"] = {"total_size": sum(_payload(file) for file in folder.glob("*.safetensors"))}
        index.write_text(json.dumps(content, indent=2) + "\n")


def _payload(file: Path) -> int:
    """Bytes of tensors in a safetensors file."""
    with file.open("rb") as stream:
        return file.stat().st_size - 8 - int.from_bytes(stream.read(8), "little")
