"""Models whose weights lie in parts on several ranks (torch's FSDP2), and their way from a folder and into one.

Layers are gathered one at a time, in the type of the computation; embedding, head and last norm in float32, because
the head adds its gradient up over slices. Gradients are summed over the ranks in float32, not averaged: a loss has
the weights of the whole step. Only the first rank reads a model's files; the others receive their parts from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from rhymed.core.errors import TrainerError
from rhymed_workers.lora.layers import outline
from rhymed_workers.trainer.policy import backbone
from rhymed_workers.trainer.policy.backbone import Compute, layers_of, load_model, prepare

Module = TypeVar("Module", bound=nn.Module)


def load(
    folder: Path,
    compute: Compute,
    mesh: Any,
    build: Callable[[Any], Module],
    begin: Callable[[Module], None] = lambda module: None,
) -> Module:
    """What `build` makes of the causal language model in a Hugging Face folder, sharded over `mesh`. `begin`: changes
    the first rank's weights before the others receive their parts.

    Raises `ConfigError`, `TrainerError`.
    """
    module = _empty(folder, compute, build)
    source = None
    if torch.distributed.get_rank() == 0:
        source = build(load_model(folder, Compute("cpu", compute.dtype)))
        begin(source)
        _take_settings(module, source)
    _shard(module, getattr(torch, compute.dtype), mesh)
    _fill(module, source)
    if compute.deterministic:
        backbone.make_deterministic()  # not before: it would write to all empty memory
    return module


def _empty(folder: Path, compute: Compute, build: Callable[[Any], Module]) -> Module:
    """The module with memory that has not been written to, so it takes none yet."""
    model = prepare(outline(folder).float(), checkpointing=compute.checkpointing)
    module = build(model).to_empty(device="cpu")
    model.tie_weights()
    return module


def _take_settings(module: Any, source: Any) -> None:
    """The folder's settings of generation, which checkpoints contain."""
    if hasattr(module, "model"):
        module.model.generation_config = source.model.generation_config


def _shard(module: nn.Module, dtype: torch.dtype, mesh: Any) -> None:
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    whole = MixedPrecisionPolicy(reduce_dtype=torch.float32, cast_forward_inputs=False)
    layer_policy = whole
    if dtype != torch.float32:
        layer_policy = MixedPrecisionPolicy(dtype, torch.float32, cast_forward_inputs=False)
    for layer in layers_of(module):
        fully_shard(layer, mesh=mesh, mp_policy=layer_policy)
    # Not kept whole after a forward pass either: one without a backward pass would leave old weights behind.
    fully_shard(module, mesh=mesh, mp_policy=whole, reshard_after_forward=True)
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)  # gloo knows no other


def _fill(module: nn.Module, source: nn.Module | None) -> None:
    """Parameters and buffers from the first rank's `source`, one at a time. Raises `TrainerError`."""
    have = None if source is None else dict(_named(source))
    for name, tensor in _named(module):
        given = None if have is None else _find(have, name, tensor)
        full = torch.empty(tensor.shape, dtype=tensor.dtype) if given is None else given.to(tensor.dtype).contiguous()
        if hasattr(tensor, "to_local"):
            from torch.distributed.tensor import distribute_tensor

            mine = distribute_tensor(full.to(tensor.device), tensor.device_mesh, tensor.placements)
            tensor.to_local().copy_(mine.to_local())
        else:
            full = full.to(tensor.device)
            torch.distributed.broadcast(full, 0)
            tensor.copy_(full)


def _named(module: nn.Module) -> Iterator[tuple[str, Any]]:
    yield from ((name, parameter.detach()) for name, parameter in module.named_parameters())
    yield from module.named_buffers()


def _find(have: Mapping[str, Tensor], name: str, tensor: Tensor) -> Tensor:
    found = have.get(name)
    if found is None or found.shape != tensor.shape:
        there = "nothing" if found is None else str(tuple(found.shape))
        raise TrainerError(
            f"the model cannot be sharded: its folder has {there} for {name}, its configuration"
            f" {tuple(tensor.shape)}: train it with one rank"
        )
    return found


def is_sharded(model: nn.Module) -> bool:
    return any(hasattr(parameter, "full_tensor") for parameter in model.parameters())


def gather(model: nn.Module, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """The state dict with whole tensors on the CPU, without the second names of tied ones; empty but on the first
    rank. All ranks call it. `dtype`: to convert floating-point numbers to, before they travel."""
    return gather_tensors(model.state_dict(keep_vars=True), dtype)


@torch.no_grad()
def gather_tensors(tensors: Mapping[str, Tensor], dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """As `gather`, of some tensors by their names."""
    first, found, seen = torch.distributed.get_rank() == 0, dict[str, Tensor](), set[int]()
    for name, tensor in tensors.items():
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        given = tensor.detach()
        if dtype is not None and given.is_floating_point():
            given = given.to(dtype)
        full = given.full_tensor() if hasattr(given, "full_tensor") else given
        if first:
            found[name] = full.cpu()
    return found
