"""The critic in a checkpoint's folder: weights and optimizer in one file, which the checkpoint's manifest covers.

The file is a safetensors file with another suffix, so that engines do not take it for a part of the model. Names are
those of `optim.moments`, and `weight.<parameter>`.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from rhymed.errors import CheckpointError
from rhymed_workers.trainer.optim import moments, shards
from rhymed_workers.trainer.ranks.group import ALONE, Alone
from rhymed_workers.trainer.saving.snapshot import Write, taken

FILE = "critic.state"
PARTS = "critic"  # several ranks'
STEPS = "steps"


def snapshot(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, ranks: Alone = ALONE, *, copy: bool = False
) -> Write:
    """`steps`: training steps so far. With several ranks each writes its part, into a folder."""
    tensors = taken(_weights_of(model) | moments.tensors(optimizer, model.named_parameters()), copy=copy)
    tensors |= {STEPS: torch.tensor(steps)}

    def write(folder: Path) -> None:
        from safetensors.torch import save_file

        if ranks.size > 1:
            shards.save(folder / PARTS, tensors, ranks.savers)
        else:
            save_file(tensors, folder / FILE)

    return write


def _weights_of(model: nn.Module) -> dict[str, Tensor]:
    return {f"weight.{name}": parameter.detach() for name, parameter in model.named_parameters()}


def load(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    """Raises `CheckpointError` unless the folder has the state of this critic after `steps` steps."""
    from safetensors.torch import load_file

    file = folder / FILE
    if (folder / PARTS).is_dir():
        position = {STEPS: torch.tensor(0)}
        shards.load(folder / PARTS, optimizer, model.named_parameters(), _weights_of(model) | position)
        _check_steps(folder / PARTS, int(position[STEPS]), steps)
        return
    if not file.is_file():
        raise CheckpointError(
            f"{folder} has no {FILE}, so it was written by an algorithm without critic: resume with that"
            " trainer.algorithm, or start a new run with model.path = this folder"
        )
    try:
        tensors = load_file(file)
        saved = int(tensors.pop(STEPS))
    except Exception as error:  # safetensors has its own kinds
        raise CheckpointError(f"{file} cannot be read: {error!r}") from error
    _check_steps(file, saved, steps)
    weights = _weights(file, model, tensors)
    moments.restore(optimizer, model.named_parameters(), tensors)
    if tensors:
        raise CheckpointError(f"{file} is not of this critic (trainer.critic.model): it has {min(tensors)}")
    with torch.no_grad():
        for parameter, weight in weights:
            moments.copy_into(parameter, weight)


def _check_steps(place: Path, saved: int, steps: int) -> None:
    if saved != steps:
        raise CheckpointError(f"{place} is of {saved} trained steps, the policy next to it of {steps}")


def _weights(file: Path, model: nn.Module, tensors: dict[str, Tensor]) -> list[tuple[nn.Parameter, Tensor]]:
    """Each parameter with its stored value, taken out of `tensors`."""
    found = []
    for name, parameter in model.named_parameters():
        weight = tensors.pop(f"weight.{name}", None)
        if weight is None or weight.shape != parameter.shape:
            what = "has no" if weight is None else f"has the shape {tuple(weight.shape)} for"
            raise CheckpointError(f"{file} is not of this critic (trainer.critic.model): it {what} {name}")
        found.append((parameter, weight))
    return found
