"""A model's size, from `config.json` and the headers of its safetensors files; nothing is loaded."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rhymed.core.errors import ConfigError
from rhymed_workers.lora.folder import entries

FP32 = 4  # bytes
ITEM_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


@dataclass(frozen=True)
class Size:
    architecture: str
    parameters: int
    layers: int
    hidden: int
    intermediate: int
    key_value: int  # width of keys, and of values
    vocabulary: int
    query: int = 0  # width of queries; 0: the hidden size
    tied: bool = False  # head and embedding are the same
    scored: int = 0  # heads whose scores between all tokens of a row are kept; 0: attention that keeps none

    @property
    def ends(self) -> int:
        """Parameters of embedding and head."""
        return self.vocabulary * self.hidden * (1 if self.tied else 2)

    @property
    def layer(self) -> float:
        """Parameters of one layer."""
        return (self.parameters - self.ends) / max(1, self.layers)


def model_size(folder: Path) -> Size:
    """Raises `ConfigError` naming the file that cannot be read."""
    config = _config(folder / "config.json")
    text = config.get("text_config") or config
    hidden = int(text.get("hidden_size") or 0)
    heads = int(text.get("num_attention_heads") or 1)
    head = int(text.get("head_dim") or hidden // heads)
    names = _tensors(folder)
    if not names:
        raise ConfigError(f"model.path: {folder} has no *.safetensors file with weights")
    if tied := bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", False))):
        names.pop("lm_head.weight", None)
    return Size(
        architecture=str((config.get("architectures") or ["a model"])[0]),
        parameters=sum(names.values()),
        layers=int(text.get("num_hidden_layers") or 0),
        hidden=hidden,
        intermediate=int(text.get("intermediate_size") or 4 * hidden),
        key_value=int(text.get("num_key_value_heads") or heads) * head,
        vocabulary=int(text.get("vocab_size") or 0),
        query=heads * head,
        tied=tied,
    )


def with_scores(size: Size, folder: Path) -> Size:
    """Of a model with transformers' own attention, `eager`."""
    config = _config(folder / "config.json")
    return replace(size, scored=int((config.get("text_config") or config).get("num_attention_heads") or 1))


def _config(file: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(file.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"model.path: {file} cannot be read: {error}") from None


def _tensors(folder: Path) -> dict[str, int]:
    """Name -> number of elements."""
    try:
        return {name: math.prod(entry.shape) for name, entry in entries(folder).items()}
    except ConfigError as error:
        raise ConfigError(f"model.path: {error}; get it again") from None
