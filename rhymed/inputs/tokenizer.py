"""Reads a model's tokenizer, and its identity, which keeps token ids of another one out of a run's history."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rhymed.errors import ConfigError

TRIED = "5.19."
"""The releases of transformers whose `AutoTokenizer` chooses as `CLASSES` does. With others, it chooses itself."""

BACKEND = "tokenization_utils_tokenizers", "TokenizersBackend"
PLAIN = dict.fromkeys(("TokenizersBackend", "PreTrainedTokenizerFast"), BACKEND)
GPT2 = {"GPT2Tokenizer": ("models.gpt2.tokenization_gpt2", "GPT2Tokenizer")}
QWEN2 = {"Qwen2Tokenizer": ("models.qwen2.tokenization_qwen2", "Qwen2Tokenizer")}
CLASSES = {
    "gpt_oss": PLAIN,
    "llama": PLAIN | GPT2,
    "qwen2": QWEN2,
    "qwen3": QWEN2,
    "qwen3_moe": QWEN2,
    "smollm3": PLAIN,
}
"""Type of the model -> `tokenizer_class` in tokenizer_config.json -> module and name of the class that reads it."""


@dataclass(frozen=True)
class Vocabulary:
    size: int | None = None  # ids are below it; None: unknown
    fingerprint: str = ""  # of all ids and their tokens; empty: unknown (the trace engine has no tokens)

    def check(self, other: Vocabulary, name: str, other_name: str, remedy: str) -> None:
        """Raises `ConfigError` if the ids of `other` have other meanings."""
        if self.fingerprint and other.fingerprint and self.fingerprint != other.fingerprint:
            raise ConfigError(
                f"{other_name} has another tokenizer ({other.size} tokens, fingerprint {other.fingerprint})"
                f" than {name} ({self.size} tokens, fingerprint {self.fingerprint}): its token ids have other"
                f" meanings; {remedy}"
            )


def read_vocabulary(file: Path) -> Vocabulary:
    """Of a tokenizer.json; with the model's config.json next to it, the size is that of the model's output."""
    from tokenizers import Tokenizer

    tokens: dict[str, int] = Tokenizer.from_file(str(file)).get_vocab(with_added_tokens=True)
    text = json.dumps(sorted(tokens.items(), key=lambda item: item[::-1]))
    size = max(tokens.values(), default=-1) + 1
    model = file.parent / "config.json"
    if model.is_file():
        size = max(size, int(json.loads(model.read_text()).get("vocab_size", 0)))
    return Vocabulary(size, hashlib.blake2b(text.encode(), digest_size=8).hexdigest())


def read_tokenizer(folder: Path) -> Any:
    """transformers' tokenizer of that folder, as `AutoTokenizer` reads it. Raises errors of several libraries.

    `AutoTokenizer` imports torch, which takes seconds: where the class that it would choose is known, that class is
    imported instead.
    """
    module, name = class_of(folder) or ("models.auto.tokenization_auto", "AutoTokenizer")
    return getattr(import_module(f"transformers.{module}"), name).from_pretrained(folder, local_files_only=True)


def class_of(folder: Path) -> tuple[str, str] | None:
    """Module and name of the class that `AutoTokenizer` would choose; None: only it knows."""
    if not version("transformers").startswith(TRIED):
        return None
    try:
        model, about = (json.loads((folder / name).read_text()) for name in ("config.json", "tokenizer_config.json"))
        found = CLASSES[model["model_type"]][about["tokenizer_class"]]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    special = "auto_map" in model or "auto_map" in about or "model_name" in model
    return None if special else found
