"""What an adapter's file says of itself: "LoRA over model X of digest D", and which tensor each layer changes.

It is in the metadata of the safetensors file, so publishing, checkpoints and exports have one format. The tensors
have PEFT's names: `base_model.model.<layer>.lora_A.weight` of (rank, in) and `….lora_B.weight` of (out, rank).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from rhymed.errors import ConfigError
from rhymed_workers.lora.folder import metadata

WEIGHTS = "adapter_model.safetensors"
SETTINGS = "adapter_config.json"
KEY = "lora"
PREFIX = "base_model.model."


@dataclass(frozen=True)
class About:
    base: str  # the model's folder or hub id, for people
    digest: str  # of the model's tensors, see `folder.digest`
    rank: int
    alpha: float
    layers: dict[str, str]  # layer -> name of its weight in the model's folder

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    def metadata(self) -> dict[str, str]:
        """For the header of a safetensors file."""
        return {KEY: json.dumps(asdict(self), separators=(",", ":"))}

    def __str__(self) -> str:
        return f"LoRA of rank {self.rank} over {self.base} (digest {self.digest})"


def read(file: Path) -> About | None:
    """None if the file says nothing: it has whole weights, or an adapter of another program."""
    text = metadata(file).get(KEY)
    if text is None:
        return None
    try:
        return About(**json.loads(text))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{file}: its description of the adapter cannot be read: {error}") from None


def names(layer: str) -> tuple[str, str]:
    """Of the tensors A and B."""
    return f"{PREFIX}{layer}.lora_A.weight", f"{PREFIX}{layer}.lora_B.weight"


def short_names(layers: Iterable[str], others: Iterable[str]) -> list[str]:
    """Names for `target_modules` of adapter_config.json: last parts (q_proj), if no other layer has one of these."""
    chosen = list(layers)
    last = {layer.rpartition(".")[2] for layer in chosen}
    return sorted(last if last.isdisjoint(other.rpartition(".")[2] for other in others) else chosen)
