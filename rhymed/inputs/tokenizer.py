"""The identity of a tokenizer, which keeps token ids of another one out of a run's history."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from rhymed.errors import ConfigError


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
