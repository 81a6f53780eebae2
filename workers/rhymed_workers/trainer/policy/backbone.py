"""The model below its head: how it is loaded, on which device and in which numbers it computes, its hidden states.

Weights are float32, whatever the computation is in. The model runs in evaluation mode, because the engine has no
dropout either. Policy, reference model and critic share this; it knows no losses.

`make_deterministic` and `free_cached` set how torch uses a GPU.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rhymed.core.config import Trainer
from rhymed.core.errors import ConfigError, TrainerError
from rhymed.inputs.models import read_config
from rhymed_workers.trainer.policy import attention
from rhymed_workers.trainer.policy import quantised as nf4
from rhymed_workers.trainer.policy.mask import Layout
from rhymed_workers.trainer.policy.packing import MicroBatch


@dataclass(frozen=True)
class Compute:
    """Where and how a model computes."""

    device: Literal["auto", "cpu", "cuda"] = "cpu"
    dtype: Literal["float32", "bfloat16"] = "float32"
    checkpointing: bool = False  # keep only the inputs of layers, and compute the rest again for the gradient
    deterministic: bool = False  # equal inputs give equal bits on a GPU too

    @classmethod
    def of(cls, trainer: Trainer, dtype: Literal["float32", "bfloat16"]) -> Compute:
        """`dtype`: `model.train_dtype`."""
        return cls(trainer.device, dtype, trainer.gradient_checkpointing, trainer.deterministic)

    def where(self) -> torch.device:
        """Raises `ConfigError`."""
        found = self.device != "cpu" and torch.cuda.is_available()
        if self.device == "cuda" and not found:
            raise ConfigError("trainer.device = 'cuda', but torch finds no GPU here: set it to auto or cpu")
        return torch.device("cuda" if found else "cpu")


def load_model(folder: Path, compute: Compute | None = None, *, quantised: bool = False) -> Any:
    """The causal language model of a Hugging Face folder, in float32. `quantised`: its linear layers in 4 bits.
    Raises `ConfigError`, `TrainerError`."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as output

    if not sys.stderr.isatty():
        output.disable_progress_bar()
    compute = compute or Compute()
    if compute.deterministic:
        make_deterministic()
    device = compute.where()
    read_config(folder)  # of a checkpoint, too: it may be from elsewhere
    options = {"dtype": torch.float32, "use_safetensors": True, "local_files_only": True}
    if quantised:
        options |= {"device_map": {"": device}, "quantization_config": nf4.settings(folder)}
        model = nf4.taken(AutoModelForCausalLM.from_pretrained(folder, **options), folder)
    else:
        model = AutoModelForCausalLM.from_pretrained(folder, **options).to(device)
    return prepare(model, checkpointing=compute.checkpointing)


def prepare(model: Any, *, checkpointing: bool = False) -> Any:
    """Evaluation mode and the attention of the model's grade. Raises `TrainerError`."""
    attention.install(model)
    if checkpointing:
        _checkpoint_layers(model)
    return model.eval()


def base_of(model: Any) -> Any:
    """The model below the head, also where PEFT wraps the whole."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    base = inner.base_model
    headed = base is inner and inner.get_output_embeddings() is not None  # Llama 4 gives its body by another name
    return inner.model if headed else base


def device_of(model: Any) -> torch.device:
    device: torch.device = next(model.parameters()).device
    return device


def hidden_states(model: Any, batch: MicroBatch, dtype: torch.dtype = torch.float32) -> Tensor:
    """(N, H) last hidden states that predict the response tokens. Raises `TrainerError`."""
    device = device_of(model)
    if not attention.is_packed(model):
        return _in_rows(model, batch, device, dtype)
    both_2T = torch.from_numpy(np.stack([batch.tokens_T, batch.positions_T])).to(device)
    layout = Layout(batch, device)
    with computing(device, dtype):
        states = base_of(model)(
            input_ids=both_2T[None, 0], position_ids=both_2T[None, 1], use_cache=False, layout=layout
        ).last_hidden_state
    if not layout.calls:
        raise TrainerError(f"{type(model).__name__} cannot be trained: it does not use the attention it was given")
    return states[0].index_select(0, torch.from_numpy(batch.predictor_N).to(device))


def _in_rows(model: Any, batch: MicroBatch, device: torch.device, dtype: torch.dtype) -> Tensor:
    """With the model's own attention and mixers. What pads a row is behind its end, where no token before sees it, so
    there is no mask of padding."""
    rows, place_N = (torch.from_numpy(one).to(device) for one in batch.apart())
    with computing(device, dtype):
        states = base_of(model)(input_ids=rows, use_cache=False).last_hidden_state
    return states.flatten(0, 1).index_select(0, place_N)


def computing(device: torch.device, dtype: torch.dtype) -> contextlib.AbstractContextManager[Any]:
    return torch.autocast(device.type, dtype) if dtype.itemsize == 2 else contextlib.nullcontext()


def layers_of(model: torch.nn.Module) -> list[torch.nn.Module]:
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def _checkpoint_layers(model: Any) -> None:
    """transformers' own way needs training mode, and with it dropout."""
    layers = layers_of(model)
    if not layers:
        raise ConfigError(f"trainer.gradient_checkpointing: {type(model).__name__} has no layers that allow it")
    for layer in layers:
        layer.forward = functools.partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)


# How torch uses a GPU in a trainer's process: deterministic kernels, and the memory that it keeps for later.
#
# Not tried on a GPU.

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


def make_deterministic() -> None:
    """For this process, before its first computation on a GPU. An operation without a deterministic kernel then
    raises torch's error, which names it."""
    os.environ.setdefault(WORKSPACE, ":4096:8")  # cuBLAS is deterministic with a fixed workspace only
    torch.use_deterministic_algorithms(True)


def free_cached(device: torch.device) -> None:
    """Give memory that no tensor uses back to the device, where an engine needs it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
