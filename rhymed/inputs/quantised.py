"""The weights that a run is over: those of `model.path`, or with `model.quantization` what is left of them in 4 bits.

Trainer and engine need the same policy. The trainer keeps frozen linear layers in 4 bits (nf4 of bitsandbytes, blocks
of 64 numbers with one factor each); the engine reads a folder with these numbers there and back in `model.dtype`.
A number that has been there and back once stays what it is, so the trainer makes its 4 bits from that folder. Needs
torch and bitsandbytes only to make the folder.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rhymed.core.config import Config, Model
from rhymed.core.errors import ConfigError
from rhymed.inputs.models import cached, make_readable, resolve_model

if TYPE_CHECKING:
    from torch import Tensor

LIBRARY = "bitsandbytes"
BLOCK = 64  # numbers that share a factor
BITS_BYTES = 0.5 + 4 / BLOCK
"""Of a weight, with its share of a float32 factor."""

WEIGHTS = {".safetensors", ".bin", ".pth", ".gguf"}
DIRECT, WITH_DIRECT = {"out_proj"}, {"falcon_h1", "mamba", "mamba2", "falcon_mamba", "nemotron_h"}
"""Layers whose weight kernels of state spaces read by themselves, and the types of models that have them. PEFT
refuses them."""


def missing_packages(model: Model) -> list[str]:
    """Sentences that name the remedy; empty if everything is installed."""
    if not model.quantization or importlib.util.find_spec(LIBRARY):
        return []
    return [
        f"model.quantization = {model.quantization!r} needs the package {LIBRARY}, which is not installed:"
        " pip install 'rhymed[bitsandbytes]', or leave it out"
    ]


def base_of(config: Config) -> Path:
    """The folder of the model that trainer and engine begin with. Blocking. Raises `ConfigError`."""
    source, model = resolve_model(config), config.model
    if not model.quantization:
        return source
    if missing := missing_packages(model):
        raise ConfigError(missing[0])
    if kind := json.loads((source / "config.json").read_text()).get("quantization_config"):
        method = kind.get("quant_method", "of an unknown kind")
        raise ConfigError(
            f"model.quantization = {model.quantization!r}: the weights of {source} are quantised already ({method}):"
            " name the model in bfloat16 or float32"
        )
    files = [(file.name, file.stat()) for file in sorted(source.iterdir()) if file.is_file()]
    about = [str(source), model.dtype, *((name, state.st_size, state.st_mtime_ns) for name, state in files)]
    key = hashlib.blake2b(json.dumps(about).encode(), digest_size=6).hexdigest()
    return cached(f"{source.name}-{model.quantization}-{key}", lambda folder: make(source, folder, model.dtype))


def make(source: Path, folder: Path, dtype: str) -> None:
    """Write the model in `source` to `folder`, in `dtype`, its linear layers there and back."""
    import torch
    from transformers import AutoModelForCausalLM

    try:
        model = AutoModelForCausalLM.from_pretrained(
            source, dtype=getattr(torch, dtype), use_safetensors=True, local_files_only=True
        )
    except (ImportError, OSError, ValueError, KeyError) as error:
        raise ConfigError(f"model.path: {source} cannot be read by transformers: {error}") from None
    modules = dict(model.named_modules())
    for name in layers(model):
        modules[name].weight.data = there_and_back(modules[name].weight.data)
    model.save_pretrained(folder)
    for file in source.iterdir():
        known = file.suffix in WEIGHTS or file.name.endswith(".index.json") or file.name == "config.json"
        if file.is_file() and not known:
            shutil.copyfile(file, folder / file.name)
    make_readable(folder)


def layers(model: Any) -> list[str]:
    """Names of the layers that have 4 bits: all linear ones but the head, and those whose weight other code reads.
    `model`: of transformers, which may be without weights. Raises `ConfigError` if there are none."""
    from torch import nn

    head = model.get_output_embeddings()
    direct = DIRECT if model.config.model_type in WITH_DIRECT else set()
    found = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
        and is_plain(module)
        and module is not head
        and module.in_features % 2 == 0  # two numbers are one byte
        and name.rpartition(".")[2] not in direct
    ]
    if not found:
        raise ConfigError(
            f"model.quantization: {type(model).__name__} has no linear layers (torch.nn.Linear): leave it out"
        )
    return found


def is_plain(linear: Any) -> bool:
    """Whether a `torch.nn.Linear` gives outputs of its inputs. A model's own subclass may give something else, as
    Llama 4's router, or multiply groups of inputs."""
    import torch
    from torch import nn

    kind = type(linear)
    if kind.forward is nn.Linear.forward or not kind.__module__.startswith("transformers."):
        return True
    try:
        with torch.no_grad():
            output = linear(linear.weight.new_zeros(1, linear.in_features))
    except (RuntimeError, ValueError, TypeError, IndexError):
        return False
    return isinstance(output, torch.Tensor) and output.shape == (1, linear.out_features)


def pack(weight: Tensor) -> tuple[Tensor, Tensor]:
    """(4-bit numbers, two in a byte; the factor of each block)."""
    from bitsandbytes.functional import quantize_4bit

    packed, state = quantize_4bit(weight.contiguous(), blocksize=BLOCK, compress_statistics=False, quant_type="nf4")
    return packed, state.absmax


def unpack(packed: Tensor, factors: Tensor, shape: tuple[int, ...], dtype: Any) -> Tensor:
    """The numbers that are left of a weight."""
    import torch

    found: Tensor = torch.ops.bitsandbytes.dequantize_4bit(packed, factors, BLOCK, "nf4", shape, dtype)
    return found


def there_and_back(weight: Tensor) -> Tensor:
    return unpack(*pack(weight), tuple(weight.shape), weight.dtype)
