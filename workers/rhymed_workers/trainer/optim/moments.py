"""An optimizer's state as named tensors, for checkpoints: `<key>.<parameter>`, e.g. `exp_avg.lm_head.weight`.

Torch's AdamW keeps `exp_avg`, `exp_avg_sq` and `step` for each parameter; bitsandbytes' optimizers keep `state1`,
`state2`, `step`, and for 8-bit moments the scales of their blocks, `absmax1` and `absmax2`. Their tables of the 256
values (`qmap1`, `qmap2`) are constants and not written. A restored optimizer continues with the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from rhymed.core.errors import CheckpointError
from rhymed_workers.trainer.optim.shards import Stored, own

CONSTANTS = ("qmap1", "qmap2")

Named = Iterable[tuple[str, torch.nn.Parameter]]


def tensors(optimizer: torch.optim.Optimizer, named: Named) -> dict[str, Tensor]:
    """The state of these parameters; of those that were never updated, nothing."""
    return {
        f"{key}.{name}": torch.as_tensor(value).detach()
        for name, parameter in named
        if parameter in optimizer.state
        for key, value in optimizer.state[parameter].items()
        if key not in CONSTANTS
    }


def restore(optimizer: torch.optim.Optimizer, named: Named, stored: Stored) -> None:
    """Take the state of these parameters out of `stored`.

    Raises `CheckpointError` if it is another optimizer's, or of parameters of another shape.
    """
    for name, parameter in named:
        if f"step.{name}" not in stored.left:
            continue
        state = fresh(optimizer, parameter)
        for key, value in state.items():
            if key in CONSTANTS:
                continue
            found = stored.take(f"{key}.{name}", value)
            if found is None:
                raise CheckpointError(
                    f"the state of parameter {name} in the checkpoint is not of {type(optimizer).__name__}: continue"
                    " with the trainer.optimizer that wrote it"
                )
            if isinstance(value, Tensor):
                own(value).copy_(found)  # in place: it may lie in paged memory
            else:
                state[key] = int(found)
        optimizer.state[parameter] = state


def fresh(optimizer: Any, parameter: torch.nn.Parameter) -> dict[str, Any]:
    """The state as before the first update."""
    if hasattr(optimizer, "init_state"):
        group, number, place = _place(optimizer, parameter)
        optimizer.init_state(group, parameter, number, place)
        return dict(optimizer.state[parameter])
    return {
        "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
        "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format, requires_grad=False),
        "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format, requires_grad=False),
    }


def _place(optimizer: torch.optim.Optimizer, parameter: torch.nn.Parameter) -> tuple[dict[str, Any], int, int]:
    """Its group, the group's number and its place there."""
    for number, group in enumerate(optimizer.param_groups):
        for place, other in enumerate(group["params"]):
            if other is parameter:
                return group, number, place
    raise CheckpointError("the checkpoint has optimizer state of a parameter that is not trained")
