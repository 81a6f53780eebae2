"""A model's dimensions, from its `config.json` alone."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rhymed.check.sizes.lora import Adapters
from rhymed.check.sizes.size import Size
from rhymed.config import Lora
from rhymed.errors import ConfigError

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Names of the number of experts in configs."""
DIMENSIONS = ("hidden", "layers", "heads", "key_value_heads", "head", "intermediate", "experts", "vocabulary")


@dataclass(frozen=True)
class Shape:
    hidden: int
    layers: int
    heads: int
    key_value_heads: int
    head: int  # width
    intermediate: int  # of a layer, or of one expert
    experts: int  # of a layer; 1: it is dense
    vocabulary: int
    tied: bool  # head and embedding are the same
    architecture: str = "a model"
    active: int = 1  # experts that a token uses

    @property
    def linear(self) -> list[tuple[int, int]]:
        """(inputs, outputs) of a layer's linear modules, without a router's."""
        query, key = self.heads * self.head, self.key_value_heads * self.head
        attention = [(self.hidden, query), (self.hidden, key), (self.hidden, key), (query, self.hidden)]
        expert = [(self.hidden, self.intermediate)] * 2 + [(self.intermediate, self.hidden)]
        return attention + expert * self.experts

    @property
    def layer_parameters(self) -> int:
        router = self.hidden * self.experts if self.experts > 1 else 0
        return sum(map(math.prod, self.linear)) + router + 2 * self.hidden

    @property
    def token_flops(self) -> float:
        """Of one token through all layers, forward, without attention and head."""
        dense = self.layer_parameters - (self.experts - self.active) * 3 * self.hidden * self.intermediate
        return 2.0 * self.layers * dense

    @property
    def head_flops(self) -> float:
        return 2.0 * self.vocabulary * self.hidden

    def attention_flops(self, context: float) -> float:
        """Of one token that sees so many, through all layers."""
        return 4.0 * self.layers * self.heads * self.head * context

    @property
    def parameters(self) -> int:
        ends = self.vocabulary * self.hidden * (1 if self.tied else 2) + self.hidden
        return self.layers * self.layer_parameters + ends

    def size(self, parameters: int = 0) -> Size:
        """`parameters`: counted in the weights; 0: by these dimensions."""
        return Size(
            architecture=self.architecture,
            parameters=parameters or self.parameters,
            layers=self.layers,
            hidden=self.hidden,
            intermediate=self.intermediate,
            key_value=self.key_value_heads * self.head,
            vocabulary=self.vocabulary,
            query=self.heads * self.head,
            tied=self.tied,
        )

    def adapters(self, lora: Lora) -> Adapters:
        """As many as `trainer.lora` has at most: on all linear layers."""
        trained = self.layers * lora.rank * sum(map(sum, self.linear))
        return Adapters(self.layers * len(self.linear), [], trained, self.layers * sum(map(math.prod, self.linear)))


def shape_of(folder: Path) -> Shape:
    """Raises `ConfigError` that names what is missing."""
    file = folder / "config.json"
    try:
        tree: dict[str, Any] = dict(json.loads(file.read_text()))
        text: dict[str, Any] = tree.get("text_config") or tree
        hidden, heads = int(text["hidden_size"]), int(text["num_attention_heads"])
        experts = next((int(text[name]) for name in EXPERTS if text.get(name)), 1)
        inner = text.get("moe_intermediate_size") if experts > 1 else None
        shape = Shape(
            hidden=hidden,
            layers=int(text["num_hidden_layers"]),
            heads=heads,
            key_value_heads=int(text.get("num_key_value_heads") or heads),
            head=int(text.get("head_dim") or hidden // max(1, heads)),
            intermediate=int(inner or text["intermediate_size"]),
            experts=experts,
            vocabulary=int(text["vocab_size"]),
            tied=bool(text.get("tie_word_embeddings", tree.get("tie_word_embeddings", False))),
            architecture=str((tree.get("architectures") or ["a model"])[0]),
            active=min(experts, int(text.get("num_experts_per_tok") or 1)),
        )
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"model.path: {file} cannot be read: {error}") from None
    except KeyError as error:
        raise ConfigError(f"model.path: {file} has no {error}: the memory on GPUs cannot be estimated") from None
    if wrong := [name for name in DIMENSIONS if getattr(shape, name) < 1]:
        raise ConfigError(f"model.path: {file}: {wrong[0]} = {getattr(shape, wrong[0])}: this is no model's size")
    return shape
