"""Exports a checkpoint as a plain Hugging Face folder, without the trainer's files, in any number format.

A checkpoint of a LoRA run is exported as an adapter in PEFT's format, or merged into the model that it was trained
over.

The folder appears complete or not at all. Weights are converted file by file; only checkpoints whose digests agree
with their manifest are exported.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rhymed.core import atomic
from rhymed.core.errors import CheckpointError, ConfigError
from rhymed.core.run.checkpoint import MANIFEST, Checkpoint, at_step, best, checkpoints_in, damage, newest
from rhymed.inputs.models import make_readable
from rhymed_workers.lora.folder import INDEX, SETTINGS, WEIGHTS, digest, weight_files
from rhymed_workers.lora.merge import Adapter, shapes
from rhymed_workers.lora.saved import is_adapter

if TYPE_CHECKING:
    from torch import Tensor

MODEL_FILES = ("config.json", "generation_config.json", INDEX)
FORMAT = {"format": "pt"}  # metadata of a safetensors file of whole weights
OURS = {MANIFEST, "trainer.json", "lineage.jsonl"}

DType = Literal["float32", "bfloat16", "float16"]


def chosen(folder: Path, step: int | Literal["best"] | None) -> Checkpoint:
    """The intact checkpoint of that step, the best one, or the newest intact one. Blocking: verifies its digests.
    Raises `ConfigError` if there is none."""
    if step == "best":
        found = best(folder.parent)
        if found is None:
            raise ConfigError(f"{folder.parent} has no best checkpoint: trainer.keep_best keeps it, by eval.datasets")
        if why := damage(found.checkpoint.folder):
            raise ConfigError(f"{found.checkpoint.folder} is damaged: {why}")
        return found.checkpoint
    checkpoint = newest(folder) if step is None else at_step(folder, step)
    if checkpoint is None:
        there = ", ".join(str(other.step) for other in checkpoints_in(folder)) or "none"
        what = "no intact checkpoint" if step is None else f"no good checkpoint of step {step}"
        raise ConfigError(f"{folder} has {what}; there: {there}")
    return checkpoint


def export(checkpoint: Checkpoint, target: Path, dtype: DType, base: Path | None = None) -> None:
    """Write the folder `target`, which must not exist. `base`: the model's folder, into which an adapter is merged.
    Raises `ConfigError` if that cannot be done, `CheckpointError` if it fails."""
    if target.exists():
        raise ConfigError(f"{target} exists already; name a new folder")
    adapter = None if base is None else _adapter(checkpoint.folder, base)
    try:
        with atomic.new_folder(target) as folder:
            for file in sorted(checkpoint.folder.iterdir()):
                if file.suffix == ".safetensors" and adapter is None:
                    _convert(file, folder / file.name, dtype)
                elif (
                    file.name not in OURS
                    and file.suffix != ".state"
                    and not (adapter and file.name in (WEIGHTS, SETTINGS))
                ):
                    shutil.copyfile(file, folder / file.name)
            if adapter and base:
                _merge(adapter, base, folder, dtype)
            _rewrite(folder, dtype)
            make_readable(folder)
            atomic.open_up(folder)
            for file in folder.iterdir():
                atomic.sync(file)
        atomic.sync(target.parent)
    except OSError as error:
        raise CheckpointError(f"{target} cannot be written: {error}") from error


def _adapter(checkpoint: Path, base: Path) -> Adapter:
    """Raises `ConfigError` if it has none, `CheckpointError` if it has one of another model."""
    if not is_adapter(checkpoint):
        raise ConfigError(f"{checkpoint} has all weights, no adapter: there is nothing to merge")
    adapter = Adapter(checkpoint / WEIGHTS)
    if problem := adapter.problem(shapes(base), digest(base)):
        raise CheckpointError(f"{problem}: {base} is not the model that the run was trained over")
    return adapter


def _merge(adapter: Adapter, base: Path, folder: Path, dtype: DType) -> None:
    """The model's files, those of its weights with the adapter merged in."""
    for name in MODEL_FILES:
        if (base / name).is_file():
            shutil.copyfile(base / name, folder / name)
    for file in weight_files(base):
        _save(adapter.merged_file(file), folder / file.name, dtype, FORMAT)


def _convert(source: Path, target: Path, dtype: DType) -> None:
    from safetensors import safe_open

    with safe_open(source, framework="pt") as file:
        _save(((name, file.get_tensor(name)) for name in file.keys()), target, dtype, file.metadata() or FORMAT)  # noqa: SIM118


def _save(tensors: Iterable[tuple[str, Tensor]], target: Path, dtype: DType, metadata: Mapping[str, str]) -> None:
    import torch
    from safetensors.torch import save_file

    wanted = getattr(torch, dtype)
    converted = {name: tensor.to(wanted) if tensor.is_floating_point() else tensor for name, tensor in tensors}
    save_file(converted, target, metadata=dict(metadata))


def _rewrite(folder: Path, dtype: DType) -> None:
    """Correct the number format and size that the files state. An adapter states neither."""
    config = folder / "config.json"
    if not config.exists():
        return
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
