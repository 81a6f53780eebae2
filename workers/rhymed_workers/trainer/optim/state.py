"""What a resume needs besides the policy, in a checkpoint's folder: optimizer, random generator and position.

The folder is also a Hugging Face model, or an adapter in PEFT's format. The optimizer's file is a safetensors file
with another suffix, so that engines do not take it for a part of the model. Several ranks write a folder instead.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from rhymed.core.errors import CheckpointError
from rhymed_workers.trainer.optim import moments, shards
from rhymed_workers.trainer.ranks import Alone
from rhymed_workers.trainer.saving import Write, copied

TOKENIZER_FILES = ("tokenizer*", "special_tokens_map.json", "vocab*", "merges.txt", "chat_template*", "*.model")
OPTIMIZER = "optimizer.state"
POSITION = "trainer.json"


def snapshot(
    model: Any,
    optimizer: torch.optim.Optimizer,
    steps: int,
    ranks: Alone,
    more: Mapping[str, float] = {},
    *,
    copy: bool,
) -> Write:
    """`more`: numbers that `load` gives back. Several ranks have no state of a random generator: each step sets its
    own."""
    tensors = copied(moments.tensors(optimizer, model.named_parameters()), copy=copy)
    position = json.dumps({"steps": steps, "lr": optimizer.param_groups[0]["lr"], **more})
    generator = torch.get_rng_state()

    def write(folder: Path) -> list[str]:
        from safetensors.torch import save_file

        names = []
        if ranks.size > 1:
            shards.save(folder / shards.FOLDER, tensors, ranks.savers)
        else:
            save_file({**tensors, "rng": generator}, folder / OPTIMIZER)
            names.append(OPTIMIZER)
        if ranks.rank == 0:
            (folder / POSITION).write_text(position)
            names.append(POSITION)
        return names

    return write


def copy_tokenizer(source: Path, folder: Path) -> list[str]:
    """Returns the names of the files."""
    files = [file for pattern in TOKENIZER_FILES for file in source.glob(pattern)]
    for file in files:
        shutil.copyfile(file, folder / file.name)
    return [file.name for file in files]


def load(folder: Path, model: Any, optimizer: torch.optim.Optimizer) -> tuple[int, dict[str, float]]:
    """Restores optimizer and random generator, whether one process or several ranks have saved them, and are reading
    them; returns the trained steps and all numbers of the position. Raises `CheckpointError`."""
    from safetensors.torch import load_file

    tensors: dict[str, torch.Tensor] = {}
    try:
        position = json.loads((folder / POSITION).read_text())
        if (folder / shards.FOLDER).is_dir():
            shards.load(folder / shards.FOLDER, optimizer, model.named_parameters())
        else:
            tensors = load_file(folder / OPTIMIZER)
            torch.set_rng_state(tensors.pop("rng"))
            moments.restore(optimizer, model.named_parameters(), tensors)
        for group in optimizer.param_groups:
            group["lr"] = position["lr"]
        steps = int(position["steps"])
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{folder}: not a checkpoint of this trainer: {error!r}") from error
    if tensors:
        raise CheckpointError(f"{folder}: state of parameters that the model does not have: {sorted(tensors)[:3]}")
    return steps, position
