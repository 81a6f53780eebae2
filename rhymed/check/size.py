"""A model's size, from `config.json` and the headers of its safetensors files; nothing is loaded."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rhymed.check.lora import Adapters
from rhymed.core.config import Lora
from rhymed.core.errors import ConfigError
from rhymed_workers.lora.folder import entries

FP32 = 4  # bytes
ITEM_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
HIDDEN = ("hidden_size", "n_embd", "d_model")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads")
INTERMEDIATE = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Names in configs: Llama's, then those of GPT-2, OPT, Falcon and their like."""
DIMENSIONS = ("hidden", "layers", "heads", "key_value_heads", "head", "intermediate", "experts", "vocabulary")


@dataclass(frozen=True)
class Size:
    """Dimensions are 0 where `config.json` has other names for them."""

    architecture: str
    hidden: int
    layers: int
    heads: int
    key_value_heads: int
    head: int  # width
    intermediate: int  # of a layer, or of one expert
    experts: int  # of a layer; 1: it is dense
    vocabulary: int
    tied: bool = False  # head and embedding are the same
    counted: int = 0  # parameters in the files; 0: they are not there
    scores: bool = False  # attention keeps the scores between all tokens of a row

    @property
    def ends(self) -> int:
        """Parameters of embedding and head."""
        return self.vocabulary * self.hidden * (1 if self.tied else 2)

    @property
    def linear(self) -> list[tuple[int, int]]:
        """(inputs, outputs) of a layer's linear modules, without a router's."""
        query, key = self.heads * self.head, self.key_value_heads * self.head
        attention = [(self.hidden, query), (self.hidden, key), (self.hidden, key), (query, self.hidden)]
        expert = [(self.hidden, self.intermediate)] * 2 + [(self.intermediate, self.hidden)]
        return attention + expert * self.experts

    @property
    def parameters(self) -> int:
        """As counted, else by the dimensions."""
        router = self.hidden * self.experts if self.experts > 1 else 0
        layer = sum(map(math.prod, self.linear)) + router + 2 * self.hidden
        return self.counted or self.layers * layer + self.ends + self.hidden

    @property
    def layer(self) -> float:
        """Parameters of one layer."""
        return (self.parameters - self.ends) / max(1, self.layers)

    def adapters(self, lora: Lora) -> Adapters:
        """As many as `trainer.lora` has at most: on all linear layers."""
        trained = self.layers * lora.rank * sum(map(sum, self.linear))
        return Adapters(self.layers * len(self.linear), [], trained, self.layers * sum(map(math.prod, self.linear)))


def size_of_model(folder: Path, *, weights: bool = True) -> Size:
    """`weights`: they are in the folder, and are counted; else the dimensions have to say enough. Raises
    `ConfigError` naming the file that cannot be read."""
    file = folder / "config.json"
    try:
        tree: dict[str, Any] = dict(json.loads(file.read_text()))
        text: dict[str, Any] = tree.get("text_config") or tree
        hidden, heads, experts = _number(text, HIDDEN), _number(text, HEADS), _number(text, EXPERTS) or 1
        inner = text.get("moe_intermediate_size") if experts > 1 else None
        tied = bool(text.get("tie_word_embeddings", tree.get("tie_word_embeddings", False)))
        size = Size(
            architecture=str((tree.get("architectures") or ["a model"])[0]),
            hidden=hidden,
            layers=_number(text, LAYERS),
            heads=heads,
            key_value_heads=int(text.get("num_key_value_heads") or heads),
            head=int(text.get("head_dim") or hidden // max(1, heads)),
            intermediate=int(inner or _number(text, INTERMEDIATE) or 4 * hidden),
            experts=experts,
            vocabulary=int(text.get("vocab_size") or 0),
            tied=tied,
            counted=_counted(folder, tied=tied) if weights else 0,
        )
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"model.path: {file} cannot be read: {error}") from None
    if not weights and (wrong := [name for name in DIMENSIONS if getattr(size, name) < 1]):
        raise ConfigError(f"model.path: {file}: {wrong[0]} = {getattr(size, wrong[0])}: this is no model's size")
    return size


def _number(text: Mapping[str, Any], names: Sequence[str]) -> int:
    """The first that is there; 0: none is."""
    return next((int(text[name]) for name in names if text.get(name)), 0)


def _counted(folder: Path, *, tied: bool) -> int:
    """Elements of all tensors."""
    try:
        names = {name: math.prod(entry.shape) for name, entry in entries(folder).items()}
    except ConfigError as error:
        raise ConfigError(f"model.path: {error}; get it again") from None
    if not names:
        raise ConfigError(f"model.path: {folder} has no *.safetensors file with weights")
    if tied:
        names.pop("lm_head.weight", None)
    return sum(names.values())
