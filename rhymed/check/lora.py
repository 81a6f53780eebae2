"""What `trainer.lora` would train, and what is wrong with it. Builds the model's layers without its weights."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from rhymed.core.config import Lora
from rhymed.core.errors import ConfigError

LOW_LR = 1e-5
"""Below it, adapters hardly move: LoRA needs about ten times the learning rate of full training."""


@dataclass(frozen=True)
class Adapters:
    layers: int
    kinds: list[str]  # last parts of the layers' names
    parameters: int  # all of them together
    frozen: int  # parameters of the model's linear layers, without the head


def adapters(lora: Lora, folder: Path) -> Adapters:
    """For the model in `folder`. Raises `ConfigError`."""
    if importlib.util.find_spec("peft") is None:
        raise ConfigError(
            "trainer.lora needs the package peft, which is not installed: pip install 'rhymed[lora]', or leave the"
            " section [trainer.lora] out"
        )
    from rhymed_workers.lora import layers, saved

    saved.check_start(lora)
    model = layers.outline(folder)
    chosen = layers.chosen(model, folder, lora)
    if lora.adapter:
        saved.check_layers(lora, chosen)
    kinds = sorted({name.rpartition(".")[2] for name in chosen})
    trained, frozen = layers.parameters(model, chosen, lora.rank), layers.frozen(model)
    return Adapters(len(chosen), kinds, trained, frozen)


def describe(lora: Lora, found: Adapters) -> str:
    start = f", beginning with {lora.adapter}" if lora.adapter else ""
    return (
        f"{found.parameters / 1e6:,.2f} M parameters are trained: rank {lora.rank} on {found.layers} linear layers"
        f" ({', '.join(found.kinds)}), scale {lora.scale:g} (alpha / rank){start}"
    )


def hint(lr: float) -> list[str]:
    """A warning if the learning rate is one for full training."""
    if lr >= LOW_LR:
        return []
    return [
        f"trainer.lr = {lr:g} is low for LoRA, which needs about ten times the learning rate of full training: try"
        " 1e-5 to 2e-4"
    ]
