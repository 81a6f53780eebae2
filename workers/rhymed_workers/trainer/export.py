"""A checkpoint as others want a model: a Hugging Face folder with nothing of the trainer in it, in any number format.

The folder is whole or not there. Weights are converted file by file; nothing of what a checkpoint's manifest does not
vouch for is exported.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Literal

from rhymed.atomic import sync
from rhymed.errors import CheckpointError
from rhymed.run.checkpoint import MANIFEST, Checkpoint, at_step, checkpoints_in, newest

OURS = {MANIFEST, "trainer.json", "optimizer.state", "lineage.jsonl"}
INDEX = "model.safetensors.index.json"

DType = Literal["float32", "bfloat16", "float16"]


def chosen(folder: Path, step: int | None) -> Checkpoint:
    """The good one of that step, or the newest good one. Blocking: its digests are verified."""
    found = newest(folder) if step is None else at_step(folder, step)
    if found is None:
        there = ", ".join(str(one.step) for one in checkpoints_in(folder)) or "none"
        what = "no checkpoint that is whole" if step is None else f"no good checkpoint of step {step}"
        raise CheckpointError(f"{folder} has {what}; there: {there}")
    return found


def export(found: Checkpoint, target: Path, dtype: DType) -> None:
    """Write the folder `target`, which must not exist. Raises `CheckpointError`."""
    if target.exists():
        raise CheckpointError(f"{target} exists already; name a new folder")
    made = target.with_name(f".{target.name}.writing")
    try:
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(parents=True)
        for file in sorted(found.folder.iterdir()):
            if file.suffix == ".safetensors":
                _convert(file, made / file.name, dtype)
            elif file.name not in OURS:
                shutil.copyfile(file, made / file.name)
        _rewrite(made, dtype)
        for file in made.iterdir():
            sync(file)
        made.rename(target)
        sync(target.parent)
    except OSError as error:
        raise CheckpointError(f"{target} cannot be written: {error}") from error
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _convert(source: Path, target: Path, dtype: DType) -> None:
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file

    wanted = getattr(torch, dtype)
    with safe_open(source, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file(
        {name: one.to(wanted) if one.is_floating_point() else one for name, one in tensors.items()},
        target,
        metadata={"format": "pt"},
    )


def _rewrite(folder: Path, dtype: DType) -> None:
    """What the files say of their own number format and size."""
    config = folder / "config.json"
    told = json.loads(config.read_text())
    told["dtype"] = dtype
    told.pop("torch_dtype", None)
    config.write_text(json.dumps(told, indent=2) + "\n")
    index = folder / INDEX
    if index.exists():
        listed = json.loads(index.read_text())
        listed["metadata"] = {"total_size": sum(_payload(file) for file in folder.glob("*.safetensors"))}
        index.write_text(json.dumps(listed, indent=2) + "\n")


def _payload(file: Path) -> int:
    """Bytes of tensors in a safetensors file."""
    with file.open("rb") as stream:
        return file.stat().st_size - 8 - int.from_bytes(stream.read(8), "little")
