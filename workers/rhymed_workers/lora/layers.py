"""Which layers of a model get an adapter, by `trainer.lora`, and what is wrong with that choice.

A model without weights (torch's meta device) is enough, so `rhymed check` asks before anything is loaded. An adapter
needs a plain linear layer whose weight is one tensor of the model's folder, because engines merge it there.

`chosen` chooses them; `Adapter` merges its matrices into weights.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from rhymed.core.config import Lora
from rhymed.core.errors import ConfigError
from rhymed.inputs.quantised import DIRECT, WITH_DIRECT, is_plain
from rhymed_workers.lora.merge import shapes


def outline(folder: Path) -> Any:
    """The model without weights. Raises `ConfigError`."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(folder)
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config)
    except (ImportError, OSError, ValueError, KeyError, AttributeError) as error:
        raise ConfigError(f"model.path: {folder} cannot be built by transformers: {error}") from None


def chosen(model: Any, folder: Path, lora: Lora) -> dict[str, str]:
    """Layer -> name of its weight in `folder`, in the model's order. Raises `ConfigError`."""
    _check_quantised(folder)
    modules = dict(model.named_modules())
    head = model.get_output_embeddings()
    every = {name: module for name, module in modules.items() if isinstance(module, nn.Linear)}
    linear = {name: module for name, module in every.items() if is_plain(module)}
    rest = {name: module for name, module in linear.items() if module is not head}
    if not rest:
        raise ConfigError(
            f"trainer.lora: {type(model).__name__} has no linear layers (torch.nn.Linear): train it without LoRA"
        )
    for target in lora.targets:
        _check_target(target, modules, rest, head)
    wanted = {
        name: module
        for name, module in rest.items()
        if not lora.targets or any(_matches(name, target) for target in lora.targets)
    }
    fused = DIRECT if model.config.model_type in WITH_DIRECT else set()
    fitting = {
        name: module
        for name, module in wanted.items()
        if lora.rank <= _smaller(module) and name.rpartition(".")[2] not in fused
    }
    if not lora.targets and fitting:  # all linear layers but those, and gates, which have one output
        wanted = fitting
    for name, module in wanted.items():
        if name.rpartition(".")[2] in fused:
            raise ConfigError(
                f"trainer.lora: the kernels of {type(model).__name__} read the weight of {name} without its adapter:"
                " leave it out of trainer.lora.targets"
            )
        if lora.rank > (smaller := _smaller(module)):
            raise ConfigError(
                f"trainer.lora.rank = {lora.rank} is larger than layer {name}, which has {module.in_features} inputs"
                f" and {module.out_features} outputs: at most {smaller}, or leave it out of trainer.lora.targets"
            )
    return _in_folder(model, folder, wanted)


def _smaller(linear: Any) -> int:
    return int(min(linear.in_features, linear.out_features))


def parameters(model: Any, layers: Mapping[str, str], rank: int) -> int:
    """Numbers in the adapters of these layers."""
    modules = dict(model.named_modules())
    return sum(rank * (modules[name].in_features + modules[name].out_features) for name in layers)


def frozen(model: Any) -> int:
    """Numbers in the weights of all linear layers but the head."""
    head = model.get_output_embeddings()
    linear = [module for module in model.modules() if isinstance(module, nn.Linear) and module is not head]
    return sum(module.weight.numel() for module in linear)


def _matches(name: str, target: str) -> bool:
    """As PEFT compares them."""
    return name == target or name.endswith(f".{target}")


def _check_quantised(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    if quantisation := config.get("quantization_config"):
        method = quantisation.get("quant_method", "of an unknown kind")
        raise ConfigError(
            f"trainer.lora: the weights of {folder} are quantised ({method}), and an adapter cannot be merged into"
            " them: name the model in bfloat16 or float32"
        )


def _check_target(target: str, modules: Mapping[str, Any], linear: Mapping[str, Any], head: Any) -> None:
    if any(_matches(name, target) for name in linear):
        return
    found = [module for name, module in modules.items() if name and _matches(name, target)]
    last = sorted({name.rpartition(".")[2] for name in linear})
    if any(module is head for module in found):
        why = "is the output head, whose loss is computed without the layer"
    elif found:
        why = f"is a {type(found[0]).__name__}, not a plain linear layer"
    else:
        close = difflib.get_close_matches(target.rpartition(".")[2], last, n=3, cutoff=0.5)
        why = "is no layer of this model" + (f"; did you mean {' or '.join(close)}?" if close else "")
    raise ConfigError(f"trainer.lora.targets: {target!r} {why} (linear layers: {', '.join(last)})")


def _in_folder(model: Any, folder: Path, layers: Mapping[str, Any]) -> dict[str, str]:
    """The name of each layer's weight: transformers renames some tensors, and merges others, when it loads."""
    have, names = shapes(folder), {}
    for layer, module in layers.items():
        weight = f"{layer}.weight"
        found = _names_of(model, weight, module.weight)
        if len(found) != 1 or have.get(found[0]) != tuple(module.weight.shape):
            raise ConfigError(
                f"trainer.lora: the weight of layer {layer} is not one tensor of {folder}, so an adapter cannot be"
                " merged there: leave the layer out of trainer.lora.targets"
            )
        names[layer] = found[0]
    return names


def _names_of(model: Any, name: str, weight: Any) -> list[str]:
    from transformers.core_model_loading import revert_weight_conversion

    try:
        return list(revert_weight_conversion(model, {name: weight}))
    except (ValueError, RuntimeError, KeyError, IndexError):  # it is a part of a tensor
        return []
