"""Tiny models of several architectures, with random weights in float64."""

from __future__ import annotations

from typing import Any

import torch

SIZES = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
}
KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"tie_word_embeddings": True},
    "mistral": {"sliding_window": 9},
    "gemma3_text": {"sliding_window": 7, "layer_types": ["sliding_attention", "full_attention"]},
    "mixtral": {"num_local_experts": 2},
    "gpt_neox": {"head_dim": None, "num_key_value_heads": None},
}


def build(kind: str, **changes: Any) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    sizes = {name: value for name, value in {**SIZES, **KINDS.get(kind, {}), **changes}.items() if value is not None}
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes)).double()
