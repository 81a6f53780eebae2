"""Tokenizers of bytes, with special tokens as published models have them; without torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def byte_tokenizer(
    special: Sequence[str] = ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    template: str = "",
    bos: str | None = None,
    eos: str | None = None,
    added: Sequence[str] = (),
) -> Any:
    """`added`: tokens that are not special, as <think> often is."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {
        token: place for place, token in enumerate([*special, *sorted(pre_tokenizers.ByteLevel.alphabet())])
    }
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(each, special=True, normalized=False) for each in special])
    tokenizer.add_tokens([AddedToken(each, special=False, normalized=False) for each in added])
    names = {"bos_token": bos, "eos_token": eos or special[0]}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **{key: name for key, name in names.items() if name})
    fast.chat_template = template or None
    return fast
