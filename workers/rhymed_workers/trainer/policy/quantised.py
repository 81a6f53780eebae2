"""Frozen linear layers in 4 bits, whose numbers are those of the folder that the engine reads.

transformers and bitsandbytes load them one at a time. bitsandbytes' own layers multiply by other kernels in training,
in inference and on each device; here a layer's numbers are unpacked for each product, so log-probs are those of the
folder's model. Knows no adapters.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rhymed.core.errors import TrainerError
from rhymed.inputs.models import read_config
from rhymed.inputs.quantised import layers, unpack
from rhymed_workers.lora.folder import entries
from rhymed_workers.lora.layers import outline


class Nf4Linear(nn.Linear):
    """Made of bitsandbytes' layer. `weight` is uint8, two numbers each; `dense` is the layer's real weight."""

    def __init__(self, loaded: Any, dtype: torch.dtype) -> None:
        nn.Module.__init__(self)
        state = loaded.weight.quant_state
        self.in_features, self.out_features = loaded.in_features, loaded.out_features
        self.weight = nn.Parameter(loaded.weight.data, requires_grad=False)
        self.bias = loaded.bias
        self.register_buffer("factors", state.absmax, persistent=False)
        self.stored = dtype

    def dense(self, dtype: torch.dtype) -> Tensor:
        """(out, in)."""
        shape = (self.out_features, self.in_features)
        factors: Any = self.factors
        return unpack(self.weight.data, factors, shape, self.stored).to(dtype)

    def forward(self, input: Tensor) -> Tensor:
        kind = input.device.type
        if torch.is_autocast_enabled(kind):
            input = input.to(torch.get_autocast_dtype(kind))
        product: Tensor = _Product.apply(input, self)
        return product


class _Product(torch.autograd.Function):
    """Keeps no unpacked weight for the gradient."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, layer: Nf4Linear) -> Tensor:
        ctx.layer = layer
        bias = None if layer.bias is None else layer.bias.to(input.dtype)
        return nn.functional.linear(input, layer.dense(input.dtype), bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0] @ ctx.layer.dense(grads[0].dtype), None


def settings(folder: Path) -> Any:
    """transformers' settings with which it loads `folder`, one that `rhymed.inputs.quantised.make` has made."""
    from transformers import BitsAndBytesConfig

    model = outline(folder)
    wanted = set(layers(model))
    others = [name for name, module in model.named_modules() if isinstance(module, nn.Linear) and name not in wanted]
    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", llm_int8_skip_modules=others)


def taken(model: Any, folder: Path) -> Any:
    """The loaded model with layers of ours. Raises `TrainerError` if other layers have 4 bits than those that went
    there and back in `folder`."""
    from bitsandbytes.nn import Linear4bit

    dtype = getattr(torch, read_config(folder)["dtype"])
    found = {name: module for name, module in model.named_modules() if isinstance(module, Linear4bit)}
    if odd := sorted(found.keys() ^ set(layers(model))):
        raise TrainerError(f"model.quantization: transformers loaded other layers in 4 bits than it has to: {odd[0]}")
    for name, module in found.items():
        model.set_submodule(name, Nf4Linear(module, dtype))
    del model.config.quantization_config  # transformers would refuse to save or move it
    model.is_quantized = model.is_loaded_in_4bit = False
    model.hf_quantizer = model.quantization_method = None
    return model


def is_quantised(model: nn.Module) -> bool:
    return any(isinstance(module, Nf4Linear) for module in model.modules())


def check(model: nn.Module, folder: Path, names: Mapping[str, str]) -> None:
    """Whether the 4-bit layers are what the engine reads, bit for bit. `names`: layer -> its tensor in `folder`.
    Raises `TrainerError`."""
    from safetensors import safe_open

    have = entries(folder)
    for layer, name in names.items():
        module = model.get_submodule(layer)
        if not isinstance(module, Nf4Linear):
            continue
        with safe_open(have[name].file, framework="pt") as file:
            weight = file.get_tensor(name)
        if not torch.equal(module.dense(weight.dtype).cpu(), weight):
            raise TrainerError(
                f"{layer} in 4 bits is not what {folder} has: bitsandbytes here rounds otherwise than where it"
                " was made: remove the folder, which is made again"
            )
