"""The model below its head: how it is loaded, on which device and in which numbers it computes, its hidden states.

Weights are float32, whatever the computation is in. The model runs in evaluation mode, because the engine has no
dropout either. Policy, reference model and critic share this; it knows no losses.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rhymed.config import Trainer
from rhymed.errors import ConfigError, TrainerError
from rhymed_workers.trainer.policy import attention, runtime
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


def load_model(folder: Path, compute: Compute | None = None) -> Any:
    """The causal language model of a Hugging Face folder, in float32. Raises `ConfigError`, `TrainerError`."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as output

    if not sys.stderr.isatty():
        output.disable_progress_bar()
    compute = compute or Compute()
    if compute.deterministic:
        runtime.make_deterministic()
    device = compute.where()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device)
    return prepare(model, checkpointing=compute.checkpointing)


def prepare(model: Any, *, checkpointing: bool = False) -> Any:
    """Evaluation mode and the attention of packed sequences. Raises `TrainerError`."""
    attention.install(model)
    if checkpointing:
        _checkpoint_layers(model)
    return model.eval()


def base_of(model: Any) -> Any:
    """The model below the head, also where PEFT wraps the whole."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return inner.base_model


def device_of(model: Any) -> torch.device:
    device: torch.device = next(model.parameters()).device
    return device


def hidden_states(model: Any, batch: MicroBatch, dtype: torch.dtype = torch.float32) -> Tensor:
    """(N, H) last hidden states that predict the response tokens. Raises `TrainerError`."""
    device = device_of(model)
    both_2T = torch.from_numpy(np.stack([batch.tokens_T, batch.positions_T])).to(device)
    layout = Layout(batch, device)
    with computing(device, dtype):
        states = base_of(model)(
            input_ids=both_2T[None, 0], position_ids=both_2T[None, 1], use_cache=False, layout=layout
        ).last_hidden_state
    if not layout.calls:
        raise TrainerError(f"{type(model).__name__} cannot be trained: it does not use the attention it was given")
    return states[0].index_select(0, torch.from_numpy(batch.predictor_N).to(device))


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
