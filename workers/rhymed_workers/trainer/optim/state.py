"""What a resume needs besides the policy, in a checkpoint's folder: optimizer and position.

The folder is also a Hugging Face model, or an adapter in PEFT's format. No state of a random generator is kept: each
step sets its own.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch

from rhymed.core.errors import CheckpointError
from rhymed_workers.trainer.optim import moments, shards
from rhymed_workers.trainer.ranks import Alone
from rhymed_workers.trainer.saving import Write, copied

TOKENIZER_FILES = ("tokenizer*", "special_tokens_map.json", "vocab*", "merges.txt", "chat_template*", "*.model")
OPTIMIZER = "optimizer"
POSITION = "trainer.json"


def snapshot(
    model: Any,
    optimizer: torch.optim.Optimizer,
    steps: int,
    ranks: Alone,
    *,
    copy: bool,
) -> Write:
    tensors = copied(moments.tensors(optimizer, model.named_parameters()), copy=copy)
    position = json.dumps({"steps": steps, "lr": optimizer.param_groups[0]["lr"]})

    def write(folder: Path) -> list[str]:
        names = shards.save(folder, OPTIMIZER, tensors, ranks.rank)
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


def load(folder: Path, model: Any, optimizer: torch.optim.Optimizer) -> int:
    """Restores the optimizer, whether one process or several ranks have saved it, and are reading it; returns the
    trained steps. Raises `CheckpointError`."""
    try:
        position = json.loads((folder / POSITION).read_text())
        steps, lr = int(position["steps"]), float(position["lr"])
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{folder}: not a checkpoint of this trainer: {error!r}") from error
    stored = shards.Stored(folder, OPTIMIZER)
    moments.restore(optimizer, model.named_parameters(), stored)
    if stored.left:
        raise CheckpointError(
            f"{folder}: state of parameters that the model does not have: {sorted(stored.left)[:3]}"
        )
    for group in optimizer.param_groups:
        group["lr"] = lr
    return steps
